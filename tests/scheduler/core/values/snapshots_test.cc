#include "scheduler/core/values/snapshots.h"

#include <gmock/gmock.h>

#include "tests/growth.h"

namespace modelet::scheduler {
namespace {

using testing::ElementsAre;

comm::Snapshot snapshot_of(uint32_t epoch, uint64_t step, std::vector<std::string> holders) {
  comm::ContentId content;
  content.bytes[0] = static_cast<std::byte>(step);
  return {.epoch = epoch, .step = step, .files = {{"index.json", content, 10, std::move(holders)}}};
}
bool everybody(const std::string& /*holder*/) { return true; }

// The next group goes on from files that have no second holder yet. Where they lie now is told while it forms:
// neither a former group's report nor one of the new group.
TEST(Snapshots, HoldersCountWhileTheNextGroupForms) {
  Snapshots snapshots;
  ASSERT_TRUE(snapshots.add(1, 1, 0, snapshot_of(1, 6, {"a"})));
  EXPECT_FALSE(snapshots.advance_stable(2, everybody));
  snapshots.go_back_to(6);
  EXPECT_TRUE(snapshots.add_holders(snapshot_of(2, 6, {"a", "b"})));
  ASSERT_EQ(snapshots.advance_stable(2, everybody), 6);
  EXPECT_THAT(snapshots.newest()->files.at(0).holders, ElementsAre("a", "b"));
}

TEST(Snapshots, HoldersOfOtherFilesDoNotCount) {
  Snapshots snapshots;
  ASSERT_TRUE(snapshots.add(1, 1, 0, snapshot_of(1, 6, {"a"})));
  comm::Snapshot other = snapshot_of(2, 6, {"a", "b"});
  other.files[0].bytes = 11;
  EXPECT_FALSE(snapshots.add_holders(other));
  EXPECT_FALSE(snapshots.add_holders(snapshot_of(2, 7, {"a", "b"})));
  EXPECT_FALSE(snapshots.advance_stable(2, everybody));
}

// What only some ranks have reported is not a snapshot yet.
TEST(Snapshots, HoldersOfAPartDoNotCount) {
  Snapshots snapshots;
  ASSERT_TRUE(snapshots.add(1, 2, 0, snapshot_of(1, 6, {"a"})));
  EXPECT_FALSE(snapshots.add_holders(snapshot_of(1, 6, {"a", "b"})));
}

// A member of a group may report any number of files, again and again.
TEST(Snapshots, WorkIsLinear) {
  const auto report_of = [](size_t n) {
    comm::Snapshot report = snapshot_of(1, 6, {"a"});
    for (size_t i = 0; i < n; ++i)
      report.files.push_back(
          {std::string(100, 'x') + std::to_string(i), report.files[0].content, 10, {"a", "b"}});
    return report;
  };
  EXPECT_TRUE(modelet::test::grows_linearly(500, report_of, [](const comm::Snapshot& report) {
    Snapshots snapshots;
    for (int i = 0; i < 2; ++i) snapshots.add(1, 2, 0, report);
    snapshots.add(1, 2, 1, report);
    snapshots.advance_stable(1, everybody);
    snapshots.add_holders(report);
    snapshots.add(2, 1, 0, report);
    snapshots.advance_stable(1, everybody);
  }));
}

}  // namespace
}  // namespace modelet::scheduler
