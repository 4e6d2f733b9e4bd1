// Which files of snapshots a node keeps for itself, for others, and for other runs.
#include "node_agent/snapshots/kept_files.h"

#include <gmock/gmock.h>

namespace modelet::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

comm::ContentId file(int number) {
  comm::ContentId id;
  id.bytes[0] = static_cast<std::byte>(number);
  return id;
}

TEST(HeldFiles, AreOfThePresentRunAndHaveALimit) {
  HeldFiles held(25);
  EXPECT_THAT(held.offer(7, 10, file(1), 10, "b"), HasSubstr("holds nothing of run 7"));
  held.begin(1, 7);
  EXPECT_EQ(held.offer(7, 10, file(1), 10, "b"), "");
  EXPECT_EQ(held.offer(7, 10, file(2), 10, "c"), "");
  EXPECT_THAT(held.offer(7, 20, file(3), 10, "b"), HasSubstr("--snapshot-mib"));
  EXPECT_EQ(held.offer(7, 20, file(1), 10, "b"), "") << "it is there already";
  EXPECT_THAT(held.nodes(), ElementsAre(std::pair(file(1), "b"), std::pair(file(2), "c")));
  held.begin(1, 7);
  EXPECT_EQ(held.nodes().size(), 2u);
  held.begin(2, 7);
  EXPECT_THAT(held.nodes(), IsEmpty()) << "the same number in another pool is another run";
}

// A file that a later snapshot has as well stays.
TEST(HeldFiles, AreForgottenWithTheirLastSnapshot) {
  HeldFiles held(100);
  held.begin(1, 7);
  for (const int number : {1, 2}) EXPECT_EQ(held.offer(7, 10, file(number), 10, "b"), "");
  EXPECT_EQ(held.offer(7, 20, file(1), 10, "b"), "");
  EXPECT_THAT(held.forget_before(8, 99), IsEmpty());
  EXPECT_THAT(held.forget_before(7, 20), ElementsAre(file(2)));
  EXPECT_THAT(held.nodes(), ElementsAre(std::pair(file(1), "b")));
}

TEST(Removals, GoAsSoonAsNobodyNeedsThem) {
  Removals removals({file(9)});
  std::vector<comm::ContentId> removed;
  bool is_open = false;
  const auto carry_out = [&](const std::set<comm::ContentId>& own,
                             const std::map<comm::ContentId, std::string>& held) {
    removed.clear();
    removals.carry_out(own, held, [&](const comm::ContentId& gone) {
      if (!is_open) removed.push_back(gone);
      return !is_open;
    });
    return removed;
  };
  removals.leave_to_others({file(4)}, {{file(5), "b"}});
  for (const int number : {1, 2, 3, 4, 5, 9}) removals.forget(file(number));
  EXPECT_THAT(carry_out({file(1)}, {{file(2), "b"}}), ElementsAre(file(3)));
  EXPECT_THAT(carry_out({}, {}), IsEmpty()) << "what was needed then has to be forgotten again";
  for (const int number : {1, 4, 9}) removals.forget(file(number));
  is_open = true;
  EXPECT_THAT(carry_out({}, {}), IsEmpty());
  is_open = false;
  EXPECT_THAT(carry_out({}, {}), ElementsAre(file(1))) << "4 and 9 are those of other runs";
  removals.take_back(file(4));
  removals.forget(file(4));
  EXPECT_THAT(carry_out({}, {}), ElementsAre(file(4)));
}

}  // namespace
}  // namespace modelet::agent
