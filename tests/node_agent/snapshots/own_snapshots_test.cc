// What a node decides about its snapshots, step by step and without disks or sockets.
#include "node_agent/snapshots/own_snapshots.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <utility>

#include "comm/content/snapshot.h"
#include "comm/control/snapshot_tables.h"

namespace modelet::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kOwnRun = 7;

class OwnSnapshotsTest : public testing::Test {
 protected:
  OwnSnapshots made(bool store_is_here = false) {
    return OwnSnapshots(
        {.node = "a",
         .store_is_here = store_is_here,
         .retry_seconds = 2,
         .report = [this](comm::control::SnapshotHeldT held) { reports.push_back(std::move(held)); },
         .warn = [this](const std::string& text) { warnings.push_back(text); }});
  }
  // Of four nodes, this one is rank 0, so its partner is "c".
  static OwnSnapshots::Group group(uint32_t epoch = 1, uint64_t from_step = 0) {
    return {.pool = 1,
            .run = kOwnRun,
            .epoch = epoch,
            .rank = 0,
            .members = {"a", "b", "c", "d"},
            .holders = {"b", "c", "d"},
            .has_store = true,
            .from_step = from_step};
  }
  static OwnSnapshots::Group alone(bool has_store) {
    return {.pool = 1, .run = kOwnRun, .epoch = 1, .members = {"a"}, .has_store = has_store};
  }

  // Does the next task: "adopt x", "send x to b". Files that go to a node in `refuse` fail.
  std::string step(OwnSnapshots& own, const std::set<std::string>& refuse = {}) {
    const auto task = own.next(now);
    if (!task) return "";
    if (const auto* adopt = std::get_if<OwnSnapshots::Adopt>(&*task)) {
      comm::ContentId content;
      content.bytes[0] = static_cast<std::byte>(adopt->name[0]);
      content.bytes[1] = static_cast<std::byte>(adopt->snapshot);
      own.adopted(*adopt, {adopt->name, content, 10});
      return "adopt " + adopt->name;
    }
    if (const auto* repair = std::get_if<OwnSnapshots::Repair>(&*task)) {
      return "repair " + repair->file.name;
    }
    const auto& send = std::get<OwnSnapshots::Send>(*task);
    if (refuse.contains(send.to))
      own.failed(now, *task, send.to + " is full");
    else
      own.sent(send);
    return "send " + send.file.name + " to " + (send.to.empty() ? "the store" : send.to);
  }
  std::vector<std::string> steps(OwnSnapshots& own, const std::set<std::string>& refuse = {}) {
    std::vector<std::string> all;
    for (std::string done = step(own, refuse); !done.empty(); done = step(own, refuse)) all.push_back(done);
    return all;
  }
  comm::Snapshot last_report() const { return comm::control::snapshot_of(reports.back()); }

  double now = 100;
  std::vector<comm::control::SnapshotHeldT> reports;
  std::vector<std::string> warnings;
};

TEST_F(OwnSnapshotsTest, EachFileGoesToThePartner) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(3, false, "run/3", {"x", "y"});
  EXPECT_TRUE(own.has_work(now));
  EXPECT_THAT(steps(own), ElementsAre("adopt x", "adopt y", "send x to c", "send y to c"));
  ASSERT_EQ(reports.size(), 1);
  EXPECT_EQ(reports[0].step, 3);
  for (const comm::SnapshotFile& file : last_report().files) EXPECT_THAT(file.holders, ElementsAre("a", "c"));
  EXPECT_THAT(own.held_steps(), ElementsAre(3));
  EXPECT_FALSE(own.has_work(1e9));
}

TEST_F(OwnSnapshotsTest, ATaskIsTheSameUntilItHasEnded) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(3, false, "run/3", {"x"});
  const auto first = std::get<OwnSnapshots::Adopt>(*own.next(now)),
             again = std::get<OwnSnapshots::Adopt>(*own.next(now));
  EXPECT_EQ(first.snapshot, again.snapshot);
  EXPECT_EQ(first.name, again.name);
}

TEST_F(OwnSnapshotsTest, WhoRefusesAFileIsAskedLastForAWhile) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(3, false, "run/3", {"x", "y"});
  EXPECT_THAT(steps(own, {"c"}),
              ElementsAre("adopt x", "adopt y", "send x to c", "send x to d", "send y to d"));
  own.take(6, false, "run/6", {"z"});
  now += 20;
  EXPECT_THAT(steps(own), ElementsAre("adopt z", "send z to d"));
  own.take(9, false, "run/9", {"z"});
  now += 20;
  EXPECT_THAT(steps(own), ElementsAre("adopt z", "send z to c"));
  EXPECT_THAT(warnings, IsEmpty());
}

TEST_F(OwnSnapshotsTest, WhatNobodyTakesIsTriedAgainLater) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(3, false, "run/3", {"x"});
  EXPECT_TRUE(own.is_sending());
  EXPECT_THAT(steps(own, {"b", "c", "d", ""}),
              ElementsAre("adopt x", "send x to c", "send x to d", "send x to b", "send x to the store"));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("c is full; d is full; b is full;  is full")));
  EXPECT_FALSE(own.is_sending());
  EXPECT_FALSE(own.has_work(now + 1.9));
  now += 2.1;
  EXPECT_THAT(steps(own, {"b", "c", "d", ""}).size(), 4);
  EXPECT_FALSE(own.has_work(now + 3.9));  // it waits longer after each failure
  EXPECT_THAT(reports, IsEmpty());
  now += 4.1;
  EXPECT_THAT(steps(own), ElementsAre("send x to c"));
  EXPECT_EQ(reports.size(), 1);
  EXPECT_EQ(warnings.size(), 1);
}

TEST_F(OwnSnapshotsTest, ASnapshotThatFailedGivesWayToANewerOne) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(3, false, "run/3", {"x"});
  steps(own, {"b", "c", "d", ""});
  own.take(6, false, "run/6", {"x"});
  EXPECT_THAT(warnings.back(), HasSubstr("step 3 is left out"));
  now += 10;
  EXPECT_THAT(steps(own), ElementsAre("adopt x", "send x to c"));
  EXPECT_THAT(own.held_steps(), ElementsAre(6));
  const auto forgotten = own.take_forgotten();
  ASSERT_EQ(forgotten.size(), 1);
  EXPECT_EQ(forgotten[0].folder, "run/3");
  EXPECT_EQ(forgotten[0].contents.size(), 1);
}

TEST_F(OwnSnapshotsTest, WhatIsKeptIsReportedAtOnceAndGoesToTheStoreLast) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(3, true, "run/3", {"x", "y"});
  EXPECT_THAT(steps(own), ElementsAre("adopt x", "adopt y", "send x to c", "send y to c",
                                      "send x to the store", "send y to the store"));
  ASSERT_EQ(reports.size(), 3);
  EXPECT_THAT(comm::control::snapshot_of(reports[0]).files[0].holders, ElementsAre("a"));
  EXPECT_THAT(comm::control::snapshot_of(reports[1]).files[1].holders, ElementsAre("a", "c"));
  EXPECT_THAT(last_report().files[1].holders, ElementsAre("a", "c", ""));
}

TEST_F(OwnSnapshotsTest, WhatTheRunNeedsComesBeforeWhatTheUserWants) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(3, true, "run/3", {"x"});
  EXPECT_EQ(step(own), "adopt x");
  EXPECT_EQ(step(own), "send x to c");
  own.take(6, false, "run/6", {"y"});
  EXPECT_THAT(steps(own), ElementsAre("adopt y", "send y to c", "send x to the store"));
}

TEST_F(OwnSnapshotsTest, OnlyTwoSnapshotsWaitForTheStore) {
  OwnSnapshots own = made();
  own.begin(group());
  for (const uint64_t at : {3, 6, 9}) {
    own.take(at, true, "run/" + std::to_string(at), {"x"});
    now += 100;
    steps(own, {""});
  }
  now += 100;
  steps(own, {""});
  EXPECT_THAT(warnings, testing::Contains(HasSubstr("step 3: it stays in run/3 only")));
  now += 100;
  const auto done = steps(own);
  EXPECT_EQ(std::ranges::count(done, "send x to the store"), 2);
}

// What keeps a file from the store may be its damage here: its holder's copy is as good.
TEST_F(OwnSnapshotsTest, AFileThatTheStoreDoesNotTakeIsRepaired) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(3, true, "run/3", {"x"});
  EXPECT_THAT(steps(own, {""}), ElementsAre("adopt x", "send x to c", "send x to the store"));
  now += 100;
  const auto repair = own.next(now);
  ASSERT_TRUE(repair && std::holds_alternative<OwnSnapshots::Repair>(*repair));
  EXPECT_THAT(std::get<OwnSnapshots::Repair>(*repair).file.holders, ElementsAre("c"));
  own.failed(now, *repair, "c is gone");
  EXPECT_FALSE(own.has_work(now));
  now += 100;
  EXPECT_THAT(steps(own), ElementsAre("repair x", "send x to the store"));
}

TEST_F(OwnSnapshotsTest, EachFileThatTheStoreDoesNotTakeIsRepairedAtOnce) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(10, true, "/run/10", {"x", "y"});
  EXPECT_THAT(steps(own, {""}),
              ElementsAre("adopt x", "adopt y", "send x to c", "send y to c", "send x to the store"));
  now += 2;
  EXPECT_EQ(step(own), "repair x");
  EXPECT_EQ(step(own), "send x to the store");
  EXPECT_EQ(step(own, {""}), "send y to the store");
  EXPECT_EQ(step(own), "");
  now += 2;
  EXPECT_EQ(step(own), "repair y");
}

TEST_F(OwnSnapshotsTest, WhoShouldGetWhatCannotBeReadHereIsNotBlamed) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(10, false, "/run/10", {"x"});
  EXPECT_EQ(step(own), "adopt x");
  const auto task = own.next(now);
  own.could_not_read(now, std::get<OwnSnapshots::Send>(*task), "x: the disk cannot read it");
  EXPECT_FALSE(own.next(now).has_value()) << "another node would not get it either";
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("the disk cannot read it")));
  own.take(20, false, "/run/20", {"y"});
  EXPECT_THAT(steps(own), ElementsAre("adopt y", "send y to c"));
}

TEST_F(OwnSnapshotsTest, TheStoreOnThisMachineIsTheOnlyOtherHolder) {
  OwnSnapshots own = made(true);
  own.begin(group());
  own.take(3, false, "run/3", {"x"});
  EXPECT_THAT(steps(own), ElementsAre("adopt x", "send x to the store"));
}

TEST_F(OwnSnapshotsTest, AGroupOfOneHasTheStoreOrItself) {
  OwnSnapshots own = made();
  own.begin(alone(true));
  own.take(3, false, "run/3", {"x"});
  EXPECT_THAT(steps(own), ElementsAre("adopt x", "send x to the store"));
  OwnSnapshots by_itself = made();
  by_itself.begin(alone(false));
  by_itself.take(3, false, "run/3", {"x"});
  EXPECT_THAT(steps(by_itself), ElementsAre("adopt x"));
  EXPECT_THAT(last_report().files[0].holders, ElementsAre("a"));
}

TEST_F(OwnSnapshotsTest, ANewGroupReportsInItsOwnNameWhatIsNotAfterItsStep) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(3, true, "run/3", {"x"});
  EXPECT_EQ(step(own), "adopt x");
  own.take(6, true, "run/6", {"x"});
  own.begin(group(2, 3));
  EXPECT_THAT(steps(own), ElementsAre("send x to c", "send x to the store"));  // step 6 is written again
  EXPECT_EQ(reports.back().step, 3);
  EXPECT_EQ(reports.back().epoch, 2);
  EXPECT_EQ(last_report().epoch, 2);
}

// The rank that wrote the files may be lost before it has sent them to the store, and the run may have ended
// with them: then nobody writes them again.
TEST_F(OwnSnapshotsTest, WhatWasBroughtGoesToTheStoreIfTheStoreLacksIt) {
  OwnSnapshots own = made();
  own.begin(group());
  own.brought(kOwnRun, 3, true, "run/3", {{"x", {}, 1, {"b", ""}}, {"y", {}, 1, {"b", "c"}}});
  EXPECT_THAT(last_report().files[0].holders, ElementsAre("a", ""));
  EXPECT_THAT(steps(own), ElementsAre("send y to the store"));
  EXPECT_THAT(last_report().files[1].holders, ElementsAre("a", ""));
  own.brought(kOwnRun, 2, false, "run/2", {{"x", {}, 1, {"b", "c"}}});
  EXPECT_THAT(steps(own), IsEmpty());
}

// A group brings the index first, then the files. With the own part they are three entries of one snapshot.
TEST_F(OwnSnapshotsTest, WhatWasBroughtIsNotGivenUpForTheOwnPartOfTheSameStep) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(3, true, "run/3", {"x"});
  own.brought(kOwnRun, 3, true, "run/3", {{"index.json", {}, 1, {"b"}}});
  own.brought(kOwnRun, 3, true, "run/3", {{"y", {}, 1, {"b"}}});
  own.take(4, true, "run/4", {"x"});
  EXPECT_THAT(warnings, IsEmpty());
  const std::vector<std::string> done = steps(own);
  for (const char* file : {"index.json", "y", "x"})
    EXPECT_THAT(done, testing::Contains(std::string("send ") + file + " to the store")) << file;
}

TEST_F(OwnSnapshotsTest, ATaskMayEndAfterItsSnapshotWasDropped) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(3, false, "run/3", {"x"});
  step(own);
  const auto task = own.next(now);
  own.begin(group(2, 0));
  own.sent(std::get<OwnSnapshots::Send>(*task));
  own.failed(now, *task, "too late");
  EXPECT_THAT(reports, IsEmpty());
  EXPECT_THAT(own.contents(), IsEmpty());
}

TEST_F(OwnSnapshotsTest, StableForgetsWhatIsOlderButNotWhatTheStoreLacks) {
  OwnSnapshots own = made();
  own.begin(group());
  own.take(3, true, "run/3", {"x"});
  steps(own, {""});
  own.take(6, false, "run/6", {"x"});
  steps(own, {""});
  own.take(9, false, "run/9", {"x"});
  steps(own, {""});
  EXPECT_THAT(own.take_forgotten().size(), 0);
  own.stable(kOwnRun, 9);
  EXPECT_EQ(own.contents().size(), 2);
  const auto forgotten = own.take_forgotten();
  ASSERT_EQ(forgotten.size(), 1);
  EXPECT_EQ(forgotten[0].folder, "run/6");
  EXPECT_THAT(forgotten[0].names, ElementsAre("x"));
  own.stable(kOwnRun + 1, 100);  // of another run
  EXPECT_EQ(own.contents().size(), 2);
}

}  // namespace
}  // namespace modelet::agent
