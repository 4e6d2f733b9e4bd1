// Runs that outlive their nodes and the scheduler.
#include <gmock/gmock.h>

#include "tests/scheduler/core/recovery_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(RecoveryTest, ASnapshotIsStableOnceAllHaveTwoHoldersAndItIsWrittenDown) {
  start({"a", "b"});
  pool.receive("a", held(run, 1, 100, 0, {"a", "b"}));
  EXPECT_EQ(status().stable_step, 0u) << "b has not reported";
  pool.receive("b", held(run, 1, 100, 1, {"b"}));
  EXPECT_EQ(status().stable_step, 0u) << "one holder is not enough";
  pool.receive("b", held(run, 1, 100, 1, {"b", "gone"}));
  EXPECT_EQ(status().stable_step, 0u) << "nor one that nobody knows";
  pool.receive("b", held(run, 1, 100, 1, {"a"}));
  EXPECT_EQ(status().stable_step, 100u);
  EXPECT_EQ(pool.take<msg::StableT>("a").size(), 1u);
  pool.restart();
  EXPECT_EQ(status().stable_step, 100u);
}

TEST_F(RecoveryTest, ASpareTakesTheRankOfALostNode) {
  start({"a", "b"}, 2);
  join("c");
  EXPECT_EQ(pool.node("c").run, 0u);
  snapshot(100);
  pass(6, {"a", "c"}, 150);
  EXPECT_EQ(status().state, RunState::Forming) << status().detail;
  EXPECT_THAT(status().node_names, ElementsAre("a", "c"));
  EXPECT_EQ(status().recoveries, 1u);
  EXPECT_EQ(status().step, 100u) << "goes on from there";
  get_ready({"a", "c"});
  EXPECT_EQ(prepares["c"].epoch, 2u);
  EXPECT_EQ(prepares["c"].rank, 1u);
  EXPECT_EQ(prepares["c"].owner, owner) << "the same bits";
  const comm::Snapshot from = comm::parse_snapshot(prepares["c"].snapshot);
  EXPECT_EQ(from.step, 100u);
  EXPECT_EQ(from.files.size(), 2u);
  Names holders;
  for (const auto& holder : prepares["c"].holders) holders.push_back(holder->node);
  EXPECT_THAT(holders, testing::UnorderedElementsAre("a", "c"));
  EXPECT_TRUE(pool.take<msg::AbortT>("a").empty()) << "Prepare ends its part";
}

TEST_F(RecoveryTest, TheGroupHearsHowOftenNodesAreLost) {
  start({"a", "b"}, 2);
  EXPECT_EQ(prepares["a"].seconds_between_losses, 0) << "none was lost yet";
  join("c");
  pass(100, {"a", "b", "c"}, 50);
  pool.receive("c", msg::LeaveT{});
  join("c", 2);
  pass(6, {"a", "c"}, 50);
  get_ready({"a", "c"});
  EXPECT_NEAR(prepares["a"].seconds_between_losses, 3 * 106 / 2, 3) << "of 3 nodes; who leaves is not lost";
  pool.restart();
  pool.handle(Tick{});
  join("a", 1, run, 2);
  join("c", 2, run, 2);
  join("d");
  pass(6, {"a", "d"}, 60);
  get_ready({"a", "d"});
  EXPECT_NEAR(prepares["a"].seconds_between_losses, 3 * (106 + 6) / 2 / 2, 6) << "another, after a restart";
}

TEST_F(RecoveryTest, ARunInASharedFolderGoesOnFromItsCheckpoint) {
  start({"a", "b"}, 2, "/shared/run");
  EXPECT_EQ(prepares["a"].snapshot, "");
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"checkpoint","step":100})"});
  pool.restart();
  pool.handle(Tick{});
  for (const char* name : {"a", "b"}) join(name, 1, run, 1);
  join("c");
  pass(6, {"a", "c"}, 150);
  EXPECT_EQ(status().state, RunState::Forming) << status().detail;
  EXPECT_THAT(status().node_names, ElementsAre("a", "c"));
  EXPECT_EQ(status().step, 100u);
  get_ready({"a", "c"});
  EXPECT_EQ(prepares["c"].epoch, 2u);
  EXPECT_EQ(prepares["c"].rank, 1u);
  EXPECT_EQ(prepares["c"].owner, owner) << "the same bits";
  EXPECT_EQ(prepares["c"].out, "/shared/run");
  EXPECT_EQ(prepares["c"].snapshot, "") << "it finds the checkpoint itself";
  pass(6, {"a"}, 150);
  get_ready({"a"});
  EXPECT_EQ(status().recoveries, 2u) << "with those that are left";
  pool.receive("a", done(run, Outcome::Ok, 200, "", 3));
  EXPECT_EQ(status().state, RunState::Finished) << status().detail;
  EXPECT_EQ(pool.node("a").run, 0u);
}

TEST_F(RecoveryTest, ANodeLeavesARunInASharedFolder) {
  start({"a", "b", "c"}, 3, "/shared/run");
  pool.receive("b", msg::WishToLeaveT{});
  EXPECT_EQ(pool.take<msg::StopT>("a").size(), 1u);
  pool.receive("a",
               msg::RunEventT{{}, run, R"({"event":"interrupted","step":120,"checkpoint":"/shared/run/c"})"});
  all_done(Outcome::Interrupted, 120);
  EXPECT_EQ(status().state, RunState::Forming) << status().detail;
  EXPECT_THAT(status().node_names, ElementsAre("a", "c"));
  EXPECT_EQ(status().step, 120u);
  EXPECT_EQ(status().replans, 0u) << "nobody is slow";
  EXPECT_EQ(pool.take<msg::ReleasedT>("b").size(), 1u);
}

TEST_F(RecoveryTest, ARunInAFolderOfOneNodeWaitsForThatNode) {
  start({"a"}, 1, "/local/run");
  join("b");
  pass(6, {"b"}, 0);
  EXPECT_EQ(status().state, RunState::Waiting) << "nobody says that b sees the folder";
  join("a", 2);
  get_ready({"a"});
  EXPECT_EQ(prepares["a"].epoch, 2u);
}

// Seed 46384 of the simulation: the node kept what it had prepared for ever.
TEST_F(RecoveryTest, AnAbortThatWasLostIsSaidAgain) {
  pool.handle(Tick{});
  join("a");
  join("b");
  pool.receive("client", submission(2));
  run = pool.take<msg::AcceptedT>("client").at(0).run;
  pool.receive("client", msg::StopRunT{{}, run});
  ASSERT_EQ(status().state, RunState::Stopped);
  EXPECT_EQ(pool.take<msg::AbortT>("a").size(), 1u);
  join("a", 1, run, 1);  // over a new connection
  EXPECT_EQ(pool.take<msg::AbortT>("a").at(0).run, run);
  pool.receive("a", done(run, Outcome::Failed, 0, "", 1));
  EXPECT_EQ(pool.node("a").run, 0u);
}

// Seeds 11730 and 400911 of the simulation: each node that was lost, and each that came back, used up an
// attempt.
TEST_F(RecoveryTest, ARunOutlivesALongCutOfTheScheduler) {
  const Names all = {"a", "b", "c", "d", "e", "f"};
  start(all);
  ASSERT_EQ(status().node_names, all);
  snapshot(100);
  pass(32, {}, 150);
  ASSERT_TRUE(pool.core.nodes().empty());
  for (const std::string& name : all) {
    join(name);  // its job has ended meanwhile
    pool.receive(name, done(run, Outcome::Ok, 200, "", 1));
  }
  for (int i = 0; i < 20 && status().state != RunState::Forming; ++i) pass(1, all, 0);
  get_ready(status().node_names);
  EXPECT_EQ(status().step, 100u);
}

// The groups of these nodes go on working.
TEST_F(RecoveryTest, WhenMostNodesFallSilentTheSchedulerMayBeCutOff) {
  start({"a", "b", "c"}, 3);
  join("d");
  snapshot(100);
  pass(20, {"d"}, 0);
  EXPECT_EQ(status().epoch, 1u);
  EXPECT_EQ(status().state, RunState::Running);
  pass(4, {"a", "d"}, 150);
  EXPECT_EQ(status().state, RunState::Running) << "a is back, the others may follow";
  pass(3, {"a", "d"}, 150);
  EXPECT_NE(status().state, RunState::Running) << "they do not";
}

TEST_F(RecoveryTest, NobodyWaitsForMoreThanHalfAMinute) {
  start({"a", "b", "c"}, 3);
  join("d");
  snapshot(100);
  pass(29, {"d"}, 0);
  EXPECT_EQ(status().state, RunState::Running);
  pass(3, {"d"}, 0);
  EXPECT_NE(status().state, RunState::Running);
}

TEST_F(RecoveryTest, WhomAPeerMissesIsDeadAsSoonAsUsual) {
  start({"a", "b", "c", "d"}, 4);
  snapshot(100);
  const Names members = status().node_names;
  msg::PeerMissedT missed;
  missed.run = run;
  missed.epoch = 1;
  missed.step = 150;
  missed.rank = static_cast<uint32_t>(std::ranges::find(members, "a") - members.begin());
  pass(1, {"d"}, 150);
  pool.receive("d", missed);
  pass(5, {"d"}, 150);
  EXPECT_NE(status().state, RunState::Running);
}

TEST_F(RecoveryTest, WithoutASpareTheRunIsPlannedAnew) {
  start({"a", "b", "c"});
  snapshot(100);
  pool.receive("b", msg::LeaveT{});
  EXPECT_THAT(status().node_names, ElementsAre("a", "c"));
  get_ready({"a", "c"});
  EXPECT_NE(prepares["a"].owner, owner);
  EXPECT_EQ(prepares["a"].size, 2u);
  snapshot(200, true);
  all_done(Outcome::Ok, 200);
  EXPECT_EQ(status().state, RunState::Finished) << status().detail;
  EXPECT_EQ(pool.node("a").run, 0u);
}

TEST_F(RecoveryTest, WithoutASnapshotItBeginsAgain) {
  start({"a", "b"});
  pass(6, {"a"}, 50);
  get_ready({"a"});
  EXPECT_EQ(prepares["a"].snapshot, "");
  EXPECT_EQ(status().step, 0u);
}

TEST_F(RecoveryTest, ALossWhileFormingFormsOnceMore) {
  start({"a", "b", "c"});
  snapshot(100);
  pool.receive("b", msg::LeaveT{});
  ASSERT_EQ(status().state, RunState::Forming);
  pool.receive("c", msg::LeaveT{});
  EXPECT_EQ(status().state, RunState::Waiting) << "b and c alone held the files of rank 1";
  EXPECT_EQ(status().recoveries, 2u);
}

TEST_F(RecoveryTest, ItWaitsForTheHolderOfItsFiles) {
  start({"a", "b"});
  snapshot(100);
  pass(6, {}, 100);
  EXPECT_EQ(status().state, RunState::Waiting);
  EXPECT_THAT(status().detail,
              testing::ContainsRegex("waits for node '[ab]': nobody else has part-[01] of step 100"));
  EXPECT_TRUE(pool.core.nodes().empty());
  join("b", 2);
  EXPECT_EQ(status().state, RunState::Forming);
  EXPECT_THAT(status().node_names, ElementsAre("b"));
  get_ready({"b"});
  EXPECT_EQ(comm::parse_snapshot(prepares["b"].snapshot).step, 100u);
}

// Seed 131663 of the simulation: the run began anew.
TEST_F(RecoveryTest, AHolderThatGoesWhileThePlanIsMadeIsWaitedFor) {
  start({"a", "b", "c"});
  join("d");
  pool.receive("d", msg::WishToLeaveT{});  // so it gets no work
  pool.receive("a", held(run, 1, 100, 0, {"b", "d"}));
  pool.receive("b", held(run, 1, 100, 1, {"b", "c"}));
  pool.receive("c", held(run, 1, 100, 2, {"c", "a"}));
  ASSERT_EQ(status().stable_step, 100u);
  pool.plans_later = true;
  pool.receive("b", msg::LeaveT{});
  ASSERT_EQ(pool.requests.size(), 1u) << "with a and c";
  pool.receive("d", msg::LeaveT{});
  pool.handle(carry_out(pool.requests.front()));
  EXPECT_EQ(status().state, RunState::Waiting) << status().detail;
  EXPECT_THAT(status().detail, HasSubstr("waits for node 'b': nobody else has part-"));
  pool.plans_later = false;
  join("b", 2);
  pool.receive("a", done(run, Outcome::Failed, 100, "", 1));
  EXPECT_EQ(status().state, RunState::Forming) << status().detail;
  get_ready(status().node_names);
  EXPECT_EQ(comm::parse_snapshot(prepares["b"].snapshot).step, 100u);
}

// The disk keeps the files, in whatever way the node left.
TEST_F(RecoveryTest, AHolderThatHasLeftCountsWhenItIsBack) {
  start({"a", "b"});
  snapshot(100);
  for (const char* name : {"a", "b"}) pool.receive(name, msg::LeaveT{});
  EXPECT_THAT(status().detail,
              testing::ContainsRegex("waits for node '[ab]': nobody else has part-[01] of step 100"));
  join("b", 2);
  EXPECT_EQ(status().state, RunState::Forming) << status().detail;
  get_ready({"b"});
  EXPECT_EQ(comm::parse_snapshot(prepares["b"].snapshot).step, 100u);
}

TEST_F(RecoveryTest, FilesThatNeverComeBackEndIt) {
  start({"a", "b"});
  snapshot(100);
  for (const char* name : {"a", "b"}) pool.receive(name, msg::LeaveT{});
  join("c");
  EXPECT_EQ(status().state, RunState::Waiting);
  pass(700, {"c"}, 0);
  EXPECT_EQ(status().state, RunState::Failed);
  EXPECT_THAT(status().detail,
              testing::ContainsRegex("node '[ab]': nobody else has part-[01] of step 100: gone for 600 s"));
}

// The user wanted the snapshot of step 100, so the store has it. Of a newer snapshot only a node had the rest.
TEST_F(RecoveryTest, WithoutTheNewestFilesItGoesOnFromWhatTheStoreHas) {
  pool.core = Core(pool.options = {.data_port = 1});
  start({"a", "b"});
  for (uint32_t rank = 0; const char* name : {"a", "b"})
    pool.receive(name, held(run, 1, 100, rank++, {name, ""}, true));
  pool.receive("a", held(run, 1, 200, 0, {"a", "b"}));
  pool.receive("b", held(run, 1, 200, 1, {"b", ""}));
  ASSERT_EQ(status().stable_step, 200u);
  join("c");
  for (const char* name : {"a", "b"}) pool.receive(name, msg::LeaveT{});
  get_ready({"c"});
  EXPECT_EQ(comm::parse_snapshot(prepares["c"].snapshot).step, 100u);
  EXPECT_EQ(status().step, 100u);
  EXPECT_EQ(status().stable_step, 100u) << "what comes after it is computed again";
}

// Nodes remove their files of older snapshots once a newer one is stable.
TEST_F(RecoveryTest, FilesOfAnOlderSnapshotCountOnlyInTheStore) {
  pool.core = Core(pool.options = {.data_port = 1});
  start({"a", "b"});
  join("c");
  for (uint32_t rank = 0; const char* name : {"a", "b"})
    pool.receive(name, held(run, 1, 100, rank++, {name, "c"}, true));
  snapshot(200);
  ASSERT_EQ(status().stable_step, 200u);
  for (const char* name : {"a", "b"}) pool.receive(name, msg::LeaveT{});
  EXPECT_EQ(status().state, RunState::Waiting);
  EXPECT_THAT(status().detail, HasSubstr("of step 200"));
}

TEST_F(RecoveryTest, TooFewNodesAreWaitedFor) {
  start_with_all({"a", "b", "c"});
  snapshot(10);
  pool.receive("b", msg::LeaveT{});
  EXPECT_EQ(status().state, RunState::Waiting);
  EXPECT_THAT(status().detail, HasSubstr("waits for 3 nodes to go on from step 10"));
  EXPECT_EQ(pool.take<msg::AbortT>("a").size(), 1u);
  EXPECT_EQ(pool.node("a").run, run) << "until it says that it has ended";
  for (const char* name : {"a", "c"}) pool.receive(name, done(run, Outcome::Failed, 12));
  EXPECT_EQ(pool.node("a").run, 0u);
  join("d");
  get_ready({"a", "d", "c"});
  EXPECT_EQ(prepares["d"].rank, 1u);
  EXPECT_EQ(prepares["d"].owner, owner);
}

TEST_F(RecoveryTest, AFinishedRunNeedsItsFiles) {
  start({"a", "b"});
  snapshot(100);
  all_done(Outcome::Ok, 200);
  EXPECT_EQ(status().state, RunState::Running);
  EXPECT_THAT(status().detail, HasSubstr("brings the files of step 200 to safety"));
  pool.receive("b", msg::LeaveT{});  // with its files
  EXPECT_EQ(status().state, RunState::Forming);
  get_ready({"a"});
  EXPECT_EQ(comm::parse_snapshot(prepares["a"].snapshot).step, 100u);
  pool.receive("a", done(run, Outcome::Ok, 200, "", 2));
  pool.receive("a", held(run, 2, 200, 0, {"a"}, true));
  EXPECT_EQ(status().state, RunState::Finished) << "one holder in a pool of one";
}

TEST_F(RecoveryTest, WhoIsLostBeforeItsLastFilesAreInTheStoreIsReplaced) {
  pool.core = Core(pool.options = {.data_port = 1});
  start({"a", "b"});
  all_done(Outcome::Ok, 200);
  snapshot(200, true);
  EXPECT_THAT(status().detail, HasSubstr("brings the files of step 200 to safety"));
  pool.receive("b", msg::LeaveT{});  // two nodes had the files, the store has not
  EXPECT_EQ(status().state, RunState::Forming);
  get_ready({"a"});
  EXPECT_EQ(comm::parse_snapshot(prepares["a"].snapshot).step, 200u);
}

TEST_F(RecoveryTest, LastFilesThatNobodyBringsAreWrittenAgain) {
  start({"a", "b"});
  snapshot(100);
  all_done(Outcome::Ok, 200);
  pass(700, {"a", "b"}, 200);
  EXPECT_EQ(status().state, RunState::Forming) << status().detail;
  EXPECT_EQ(status().recoveries, 1u);
}

TEST_F(RecoveryTest, AMemberThatHasEndedIsMissed) {
  start({"a", "b"});
  snapshot(100);
  pool.receive("a", done(run, Outcome::Ok, 200));
  pool.receive("b", msg::PeerMissedT{{}, run, 1, 0, "its connection is gone", false, 200});
  pass(6, {"a", "b"}, 200);
  EXPECT_EQ(status().state, RunState::Forming) << "it hung";
  EXPECT_EQ(status().epoch, 2u);
}

TEST_F(RecoveryTest, AMissedNodeWithoutAConnectionIsLostAtOnce) {
  start({"a", "b"});
  snapshot(100);
  pool.inbox.clear();
  pool.now += 0.1;
  pool.receive("a", msg::PeerMissedT{{}, run, 1, 1, "silent", false, 100});
  EXPECT_EQ(pool.take<msg::AliveT>("b").size(), 1u);
  pool.handle(PeerGone{"b"});
  EXPECT_EQ(status().state, RunState::Forming);
  EXPECT_THAT(status().node_names, ElementsAre("a"));
}

TEST_F(RecoveryTest, AMissedNodeThatLivesGetsTime) {
  start({"a", "b"});
  snapshot(100);
  pool.receive("a", msg::PeerMissedT{{}, run, 1, 1, "silent", false, 100});
  pass(3, {"a", "b"}, 100);
  pool.handle(PeerGone{"b"});
  EXPECT_EQ(status().epoch, 1u);
  pass(20, {"a", "b"}, 120);
  EXPECT_EQ(status().epoch, 1u) << "the group goes on";
  pool.receive("a", msg::PeerMissedT{{}, run, 1, 1, "silent", false, 120});
  pass(20, {"a", "b"}, 120);
  EXPECT_EQ(status().epoch, 2u) << "it does not";
}

// While the nodes wait for a full disk, for example, the step does not grow.
TEST_F(RecoveryTest, WhoIsMissedNoMoreIsNoReasonForANewGroup) {
  start({"a", "b", "c"});
  snapshot(100);
  pass(1, {"a", "b", "c"}, 100);
  const auto report = [&](const char* by, bool over) {
    pool.receive(by, msg::PeerMissedT{{}, run, 1, 1, "silent", over, 100});
  };
  for (const char* by : {"a", "c"}) report(by, false);
  pass(3, {"a", "b", "c"}, 100);
  report("a", true);
  report("c", true);
  pass(60, {"a", "b", "c"}, 100);
  EXPECT_EQ(status().epoch, 1u);
  for (const char* by : {"a", "c"}) report(by, false);
  report("a", true);
  pass(20, {"a", "b", "c"}, 100);
  EXPECT_EQ(status().epoch, 2u) << "c still misses it";
}

TEST_F(RecoveryTest, EachMissHasItsOwnTime) {
  start({"a", "b", "c"});
  snapshot(100);
  pass(1, {"a", "b", "c"}, 100);
  pool.receive("a", msg::PeerMissedT{{}, run, 1, 1, "silent", false, 100});
  pass(8, {"a", "b", "c"}, 100);
  pool.receive("c", msg::PeerMissedT{{}, run, 1, 0, "silent", false, 100});
  pool.receive("a", msg::PeerMissedT{{}, run, 1, 1, "", true});
  pass(9, {"a", "b", "c"}, 100);
  EXPECT_EQ(status().epoch, 1u) << "a is missed for nine seconds";
  pass(2, {"a", "b", "c"}, 100);
  EXPECT_EQ(status().epoch, 2u);
}

// Another replica may train on for many steps.
TEST_F(RecoveryTest, AMissLastsWhileOthersGetOn) {
  start({"a", "b", "c"});
  snapshot(100);
  pass(1, {"a", "b", "c"}, 100);
  pool.receive("a", msg::PeerMissedT{{}, run, 1, 1, "silent", false, 100});
  for (uint64_t i = 1; i <= 12 && status().epoch == 1; ++i) {
    beat("a", 100);
    beat("b", 100);
    pass(1, {"c"}, 100 + i);
  }
  EXPECT_EQ(status().epoch, 2u);
}

TEST_F(RecoveryTest, WhoGetsOnMissesNobody) {
  start({"a", "b", "c"});
  snapshot(100);
  pass(1, {"a", "b", "c"}, 100);
  pool.receive("a", msg::PeerMissedT{{}, run, 1, 1, "silent", false, 100});
  pass(9, {"a", "b", "c"}, 100);
  pass(9, {"a", "b", "c"}, 101);
  EXPECT_EQ(status().epoch, 1u);
}

// Small messages get through each time that the connection is back, but what the step needs does not.
TEST_F(RecoveryTest, AConnectionThatComesAndGoesIsOneMiss) {
  start({"a", "b", "c"});
  snapshot(100);
  pass(1, {"a", "b", "c"}, 100);
  for (int i = 0; i < 4; ++i) {
    pool.receive("a", msg::PeerMissedT{{}, run, 1, 1, "has closed its connection", false, 100});
    pass(2, {"a", "b", "c"}, 100);
    pool.receive("a", msg::PeerMissedT{{}, run, 1, 1, "", true});
    pass(1, {"a", "b", "c"}, 100);
  }
  EXPECT_EQ(status().epoch, 2u);
}

TEST_F(RecoveryTest, WhoIsMissedNoMoreIsNotDeadSoonerThanOthers) {
  start({"a", "b", "c", "d"}, 4);
  snapshot(100);
  const Names members = status().node_names;
  msg::PeerMissedT missed;
  missed.run = run;
  missed.epoch = 1;
  missed.step = 150;
  missed.rank = static_cast<uint32_t>(std::ranges::find(members, "a") - members.begin());
  pass(1, {"d"}, 150);
  pool.receive("d", missed);
  missed.over = true;
  pool.receive("d", missed);
  pass(10, {"d"}, 150);
  EXPECT_EQ(status().state, RunState::Running) << "most nodes are silent: the scheduler may be cut off";
}

TEST_F(RecoveryTest, WhoWishesToLeaveDoesWithoutLoss) {
  start({"a", "b"}, 2);
  join("c");
  snapshot(100);
  pool.inbox.clear();
  pool.receive("b", msg::WishToLeaveT{{}, 60, "its owner is back"});
  EXPECT_TRUE(pool.take<msg::ReleasedT>("b").empty());
  EXPECT_EQ(pool.take<msg::StopT>("a").size(), 1u);
  all_done(Outcome::Interrupted, 130);
  EXPECT_EQ(status().state, RunState::Running) << "its files are on their way";
  snapshot(130, true);
  EXPECT_THAT(status().node_names, ElementsAre("a", "c"));
  EXPECT_EQ(status().recoveries, 0u);
  EXPECT_TRUE(pool.take<msg::ReleasedT>("b").empty()) << "others fetch files from it";
  get_ready({"a", "c"});
  EXPECT_EQ(comm::parse_snapshot(prepares["c"].snapshot).step, 130u);
  EXPECT_EQ(pool.take<msg::ReleasedT>("b").size(), 1u);
  pool.receive("client", submission(1));
  EXPECT_TRUE(pool.take<msg::PrepareT>("b").empty()) << "it gets no work any more";
}

TEST_F(RecoveryTest, WhoAloneHasTheFilesOfAWaitingRunIsKept) {
  start({"a"});
  pool.receive("a", msg::WishToLeaveT{{}, 60, "its owner is back"});
  pool.receive("a", held(run, 1, 130, 0, {"a"}, true));
  pool.receive("a", done(run, Outcome::Interrupted, 130));
  EXPECT_EQ(status().state, RunState::Waiting);
  EXPECT_TRUE(pool.take<msg::ReleasedT>("a").empty());
  join("b");
  get_ready({"b"});
  EXPECT_EQ(pool.take<msg::ReleasedT>("a").size(), 1u);
}

TEST_F(RecoveryTest, AFreeNodeMayLeaveAtOnce) {
  join("a");
  for (int i = 0; i < 2; ++i) {
    pool.receive("a", msg::WishToLeaveT{});
    EXPECT_EQ(pool.take<msg::ReleasedT>("a").size(), 1u);
  }
}

TEST_F(RecoveryTest, AnAgentThatLeavesAloneIsNotPreparedAgainAndAgain) {
  start({"a"});
  pool.inbox.clear();
  pool.receive("a", msg::WishToLeaveT{{}, 60, ""});
  pool.receive("a", held(run, 1, 12, 0, {"a"}, true));
  pool.receive("a", done(run, Outcome::Interrupted, 12));
  EXPECT_EQ(status().state, RunState::Waiting);
  pass(20, {"a"}, 12);
  EXPECT_TRUE(pool.take<msg::PrepareT>("a").empty());
  EXPECT_EQ(pool.node("a").run, 0u);
}

TEST_F(RecoveryTest, AnAdministratorDrainsANode) {
  start({"a", "b"});
  snapshot(100);
  const auto answer = [&](comm::Role role, bool drain) {
    pool.inbox["x"].clear();
    pool.handle(Received{"x", msg::DrainNodeT{{}, "b", drain}, {role, "key"}});
    return pool.take<msg::NodeListT>("x").size();
  };
  EXPECT_EQ(answer(comm::Role::kUser, true), 0u);
  EXPECT_EQ(answer(comm::Role::kAdmin, true), 1u);
  EXPECT_TRUE(pool.node("b").draining);
  snapshot(130, true);
  all_done(Outcome::Interrupted, 130);
  EXPECT_THAT(status().node_names, ElementsAre("a"));
  EXPECT_EQ(pool.node("b").run, 0u);
  get_ready({"a"});
  EXPECT_EQ(answer(comm::Role::kAnybody, false), 1u);
  EXPECT_FALSE(pool.node("b").draining);
}

TEST_F(RecoveryTest, ARunThatDoesNotGetOnFails) {
  start_with_all({"a", "b"});
  snapshot(100);
  const double began = pool.now;
  for (int i = 0; i < 11; ++i) {
    ASSERT_FALSE(has_ended(status().state)) << i;
    msg::RunDoneT failed = done(run, Outcome::Failed, 100, "a peer is lost", status().epoch);
    failed.retry = true;
    pool.receive("a", failed);
    EXPECT_TRUE(i >= 2 || status().state == RunState::Forming) << "at once";
    while (status().state == RunState::Recovering) pass(1, {"a", "b"}, 100);
  }
  EXPECT_EQ(status().state, RunState::Failed);
  EXPECT_GT(pool.now, began + 120) << "a disk may be full for so long";
  EXPECT_THAT(status().detail,
              testing::AllOf(HasSubstr("11 times from step 100"), HasSubstr("a peer is lost")));
}

TEST_F(RecoveryTest, WhatCannotBetterEndsIt) {
  start({"a", "b"});
  snapshot(100);
  pool.receive("a", done(run, Outcome::Failed, 100, "the loss is not finite"));
  EXPECT_EQ(status().state, RunState::Failed);
}

TEST_F(RecoveryTest, MessagesOfAFormerEpochDoNothing) {
  start({"a", "b"}, 2);
  join("c");
  snapshot(100);
  pool.receive("b", msg::LeaveT{});
  get_ready({"a", "c"});
  pool.receive("a", done(run, Outcome::Failed, 150, "aborted"));
  pool.receive("a", held(run, 1, 150, 0, {"a", "c"}));
  pool.receive("a", msg::PeerMissedT{{}, run, 1, 1, ""});
  pool.receive("a", msg::HeartbeatT{{}, 0, run, 150, 1, 1});
  EXPECT_EQ(status().state, RunState::Running);
  EXPECT_EQ(status().epoch, 2u);
  EXPECT_EQ(status().step, 100u);
}

// Half of the model fits into the memory of a node, and the whole model does not.
TEST_F(RecoveryTest, AModelThatNoLongerFitsWaitsForANode) {
  for (const char* name : {"a", "b"}) join(name);
  msg::SubmitT submit = submission(0);
  submit.shape->features = 200'000;
  begin(submit);
  ASSERT_EQ(status().node_names.size(), 2u);
  snapshot(10);
  pool.receive("b", msg::LeaveT{});
  EXPECT_EQ(status().state, RunState::Waiting);
  EXPECT_THAT(status().detail, HasSubstr("waits for nodes to go on from step 10: the model does not fit"));
  pool.receive("a", done(run, Outcome::Failed, 12));
  pass(60, {"a"}, 0);
  EXPECT_EQ(status().state, RunState::Waiting) << "the same node is not asked again and again";
  join("c");
  get_ready({"a", "c"});
}

TEST_F(RecoveryTest, ARunGrowsToItsMostNodes) {
  join("a");
  begin(submission_of(1, {.max_nodes = 2}));
  snapshot(10);
  const auto stops_for = [&](const Names& members) {
    pool.inbox.clear();
    pool.receive("a", progress(run, members, std::vector<double>(members.size(), 1)));
    return !pool.take<msg::StopT>("a").empty();
  };
  join("b");
  ASSERT_TRUE(stops_for({"a"})) << pool.log;
  snapshot(20, true);
  all_done(Outcome::Interrupted, 20);
  get_ready({"a", "b"});
  snapshot(30);
  join("c");
  EXPECT_FALSE(stops_for({"a", "b"}));
}

// A run that waits keeps others from growing only where it would wait longer for it.
TEST_F(RecoveryTest, ARunGrowsWhileOthersWaitUnlessTheyWouldWaitLonger) {
  const auto stops = [&] {
    pool.inbox.clear();
    pool.receive("a", progress(run, {"a"}, {1}));
    return !pool.take<msg::StopT>("a").empty();
  };
  join("a");
  begin(submission_of(1, {.max_nodes = 2}));
  snapshot(10);
  const uint64_t first = run;
  join("b");
  begin(submission_of(1, {}));
  const uint64_t other = std::exchange(run, first);
  EXPECT_EQ(pool.run(other).state, msg::RunState::Running) << pool.log;
  join("c");
  pool.receive("client", submission(2));  // waits for one more node, which the other run may give back
  const uint64_t waiting = pool.take<msg::AcceptedT>("client").back().run;
  EXPECT_FALSE(stops()) << pool.log;
  pool.receive("client", msg::StopRunT{{}, waiting});
  pool.receive("client", submission(9));  // the pool has no nine nodes, so it waits for others to join
  EXPECT_TRUE(stops()) << pool.log;
}

// One of two newcomers goes while the group stops for them.
TEST_F(RecoveryTest, ReplicasGoOnWithEquallyManyNodes) {
  for (const char* name : {"a", "b"}) join(name);
  begin(submission_of(2, {.replicas = 2, .max_nodes = 4}));
  snapshot(10);
  for (const char* name : {"c", "d"}) join(name);
  pool.inbox.clear();
  pool.receive("a", progress(run, {"a", "b"}, {1, 1}));
  ASSERT_EQ(pool.take<msg::StopT>("a").size(), 1u) << pool.log;
  pool.receive("c", msg::LeaveT{});
  snapshot(20, true);
  all_done(Outcome::Interrupted, 20);
  EXPECT_EQ(status().node_names.size(), 2u);
  get_ready({"a", "b"});
}

TEST_F(RecoveryTest, ANodeThatComesHelps) {
  start({"a", "b", "c"});
  snapshot(10);
  pool.receive("c", msg::LeaveT{});
  get_ready({"a", "b"});
  snapshot(20);
  join("d");
  pool.inbox.clear();
  pool.receive("a", progress(run, {"a", "b"}, {1, 1}));
  EXPECT_EQ(pool.take<msg::StopT>("a").size(), 1u) << pool.log;
  snapshot(30, true);
  all_done(Outcome::Interrupted, 30);
  EXPECT_EQ(status().node_names.size(), 3u);
  EXPECT_THAT(status().node_names, testing::Contains("d"));
  EXPECT_EQ(status().recoveries, 1u);
}

// The run does not wait until each file has two holders. That happens while the next group trains.
TEST_F(RecoveryTest, ANodeIsTakenInAsSoonAsTheLastFilesAreKnown) {
  start({"a", "b", "c"});
  snapshot(10);
  pool.receive("c", msg::LeaveT{});
  get_ready({"a", "b"});
  snapshot(20);
  join("d");
  pool.receive("a", progress(run, {"a", "b"}, {1, 1}));
  all_done(Outcome::Interrupted, 30);
  pool.receive("a", held(run, 2, 30, 0, {"a"}, true));
  EXPECT_EQ(status().state, RunState::Running) << "b has not said what it has";
  pool.receive("b", held(run, 2, 30, 1, {"b"}, true));
  ASSERT_EQ(status().state, RunState::Forming) << status().detail;
  EXPECT_EQ(status().stable_step, 20u);
  get_ready({"a", "b", "d"});
  EXPECT_EQ(comm::parse_snapshot(prepares["d"].snapshot).step, 30u);
  pass(6, {"a", "b"}, 40);
  EXPECT_EQ(status().state, RunState::Forming);
  get_ready({"a", "b"});
  EXPECT_EQ(comm::parse_snapshot(prepares["a"].snapshot).step, 30u) << "d had nothing that nobody else has";
  pass(6, {"a"}, 40);
  get_ready({"a"});
  EXPECT_EQ(comm::parse_snapshot(prepares["a"].snapshot).step, 20u) << "b alone had files of step 30";
}

// A machine with the same name and an empty disk may take its place.
TEST_F(RecoveryTest, WhatOnlyALostNodeHadIsNotExpectedOfItsSuccessor) {
  start_with_all({"a", "b"});
  snapshot(20);
  for (uint32_t rank = 0; const char* name : {"a", "b"})
    pool.receive(name, held(run, 1, 30, rank++, {name}, true));
  pool.receive("b", msg::LeaveT{});
  ASSERT_EQ(status().state, RunState::Waiting);
  pool.receive("a", done(run, Outcome::Failed, 35));
  join("b", 2);
  get_ready({"a", "b"});
  EXPECT_EQ(comm::parse_snapshot(prepares["b"].snapshot).step, 20u);
}

TEST_F(RecoveryTest, AGroupThatFailsOnceGoesBackToWhatIsStable) {
  start({"a", "b"}, 2);
  snapshot(20);
  for (uint32_t rank = 0; const char* name : {"a", "b"})
    pool.receive(name, held(run, 1, 30, rank++, {"a"}, true));
  const auto fail = [&] {
    msg::RunDoneT failed = done(run, Outcome::Failed, 30, "its files cannot be had", status().epoch);
    failed.retry = true;
    pool.receive("b", failed);
    get_ready({"a", "b"});
    return comm::parse_snapshot(prepares["b"].snapshot).step;
  };
  EXPECT_EQ(fail(), 30u);
  EXPECT_EQ(fail(), 20u);
}

TEST_F(RecoveryTest, WhoLeavesBringsItsFilesToSafetyFirst) {
  start({"a", "b", "c"});
  snapshot(20);
  pool.receive("c", msg::WishToLeaveT{});
  all_done(Outcome::Interrupted, 30);
  for (uint32_t rank = 0; const char* name : {"a", "b", "c"})
    pool.receive(name, held(run, 1, 30, rank++, {name}, true));
  EXPECT_EQ(status().state, RunState::Running) << status().detail;
  for (uint32_t rank = 0; const char* name : {"a", "b", "c"})
    pool.receive(name, held(run, 1, 30, rank++, {name, "a", "b"}, true));
  EXPECT_EQ(status().state, RunState::Forming) << status().detail;
}

// ---- another scheduler

TEST_F(RecoveryTest, GroupsAreTakenOverAsTheyAre) {
  start({"a", "b"});
  snapshot(100);
  pool.restart();
  pool.inbox.clear();
  EXPECT_EQ(status().state, RunState::Running);
  for (const char* name : {"a", "b"}) {
    pool.receive(name, msg::HeartbeatT{{}, 0, run, 140, 1, 9});
    EXPECT_EQ(pool.take<msg::RegisterAgainT>(name).size(), 1u);
    join(name, 1, run, 1);
  }
  EXPECT_EQ(pool.node("a").run, run);
  pass(20, {"a", "b"}, 160);
  EXPECT_EQ(status().state, RunState::Running);
  EXPECT_EQ(status().epoch, 1u) << "no second group";
  EXPECT_EQ(status().step, 160u);
  EXPECT_TRUE(pool.take<msg::PrepareT>("a").empty());
  snapshot(200, true);
  all_done(Outcome::Ok, 200);
  EXPECT_EQ(status().state, RunState::Finished);
  pool.restart();
  EXPECT_EQ(status().state, RunState::Finished);
  EXPECT_EQ(status().stable_step, 200u);
  pool.receive("client", submission(1));
  EXPECT_EQ(pool.take<msg::AcceptedT>("client").at(0).run, run + 1) << "numbers never come back";
}

TEST_F(RecoveryTest, WhoDoesNotComeBackIsLost) {
  start({"a", "b"});
  snapshot(100);
  pool.restart();
  join("a", 1, run, 1);
  pass(4, {"a"}, 150);
  EXPECT_EQ(status().state, RunState::Running);
  pass(3, {"a"}, 150);
  EXPECT_EQ(status().state, RunState::Forming);
  get_ready({"a"});
  join("b", 1, run, 1);
  EXPECT_EQ(pool.take<msg::AbortT>("b").at(0).epoch, 1u) << "a group that is no more";
  EXPECT_EQ(pool.node("b").run, 0u);
}

// Seed 777752 of the simulation: the run ended with files that lay on one disk.
TEST_F(RecoveryTest, AMemberThatMayComeBackCountsAsAPlaceForFiles) {
  start({"a", "b"});
  snapshot(100);
  pool.receive("b", held(run, 1, 200, 1, {"a", "b"}, true));
  pool.restart();
  pool.handle(Tick{});
  join("a", 1, run, 1);
  pool.receive("a", held(run, 1, 200, 0, {"a"}, true));
  EXPECT_EQ(status().stable_step, 100u) << "b may get the second copy";
  join("b", 1, run, 1);
  pool.receive("a", held(run, 1, 200, 0, {"a", "b"}, true));
  EXPECT_EQ(status().stable_step, 200u);
}

TEST_F(RecoveryTest, AJobThatEndedMeanwhileIsReported) {
  start({"a", "b"});
  snapshot(200, true);
  pool.restart();
  for (const char* name : {"a", "b"}) {
    join(name);
    pool.receive(name, done(run, Outcome::Ok, 200));
    pool.receive(name, done(run, Outcome::Ok, 200));
  }
  EXPECT_EQ(status().state, RunState::Finished);
}

TEST_F(RecoveryTest, APartOfTheLastFilesIsNotForgotten) {
  start({"a", "b"});
  all_done(Outcome::Ok, 200);
  pool.receive("a", held(run, 1, 200, 0, {"a", "b"}, true));  // and its report is confirmed
  pool.restart();
  for (const char* name : {"a", "b"}) join(name);
  pool.receive("b", held(run, 1, 200, 1, {"b", "a"}, true));
  EXPECT_EQ(status().state, RunState::Finished) << status().detail;
}

TEST_F(RecoveryTest, AGroupThatWasBeingFormedIsFormedAnew) {
  for (const char* name : {"a", "b"}) join(name);
  pool.receive("client", submission(2));
  run = 1;
  ASSERT_EQ(status().state, RunState::Forming);
  pool.restart();
  for (const char* name : {"a", "b"}) join(name, 1, run, 1);
  pass(6, {"a", "b"}, 0);
  EXPECT_EQ(status().epoch, 2u);
  get_ready({"a", "b"});
}

TEST_F(RecoveryTest, AStartThatWasLostWithItsConnectionIsToldAgain) {
  start({"a"});
  pool.inbox.clear();
  auto info = registration("a");
  info.run = run;
  info.epoch = 1;
  pool.receive("a over a new connection", info);
  EXPECT_EQ(pool.take<msg::StartT>("a over a new connection").size(), 1u);
}

TEST_F(RecoveryTest, AFileThatReachesTheStoreLateCounts) {
  pool.core = Core(pool.options = {.data_port = 1});
  start({"a"}, 1);
  pool.receive("a", held(run, 1, 100, 0, {"a", ""}));
  join("b");
  pool.receive("a", msg::LeaveT{});
  get_ready({"b"});
  pool.receive("b", held(run, 2, 130, 0, {"b"}, true));
  join("a", 2);
  EXPECT_EQ(status().stable_step, 100u);
  pool.receive("b", held(run, 2, 130, 0, {"b", "a"}, true));
  EXPECT_EQ(status().stable_step, 130u);
  pool.receive("a", held(run, 2, 130, 0, {"a", ""}, true));  // it is no member
  for (const char* name : {"a", "b"}) pool.receive(name, msg::LeaveT{});
  join("c");
  EXPECT_EQ(status().state, RunState::Forming) << status().detail;
}

TEST_F(RecoveryTest, EventsOutliveTheScheduler) {
  start({"a"});
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"started"})", 1, 1});
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"started"})", 1, 1});  // sent again
  pool.restart();
  pool.receive("late", msg::WatchT{{}, run});
  const auto events = pool.take<msg::RunEventT>("late");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].number, 1u);
}

TEST_F(RecoveryTest, AnEventThatTheFormerSchedulerHasWrittenDownComesOnce) {
  start({"a"});
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"started"})", 1, 1});
  pool.restart();
  join("a", 1, run, 1);
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"started"})", 1, 1});  // again: its Alive was lost
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"progress"})", 1, 2});
  pool.receive("late", msg::WatchT{{}, run});
  EXPECT_EQ(pool.take<msg::RunEventT>("late").size(), 2u);
}

// ---- the queue

TEST_F(RecoveryTest, TheHighestPriorityStartsFirst) {
  start({"a"});
  for (const int priority : {0, 5, 1}) {
    msg::SubmitT submit = submission(1);
    submit.priority = priority;
    pool.receive("client", submit);
  }
  snapshot(10, true);
  all_done(Outcome::Ok, 10);
  EXPECT_EQ(pool.run(3).state, RunState::Forming);
}

TEST_F(RecoveryTest, TheLastLinesOfANodeThatWorksNoMoreForARunAreKept) {
  CoreOptions options;
  options.has_ledger = true;
  pool = Harness(options);
  start({"a", "b", "c"});
  join("d");
  pool.receive("admin", msg::DrainNodeT{{}, "c", true});
  snapshot(12, true);
  all_done(Outcome::Interrupted, 12);
  ASSERT_EQ(pool.node("c").run, 0u);
  for (const char* name : {"c", "d"})
    pool.receive(name, msg::RunEventT{{}, run, R"({"event": "log", "lines": ["the last"]})", 1, 1});
  EXPECT_EQ(pool.written.log_of("c"), "the last\n");
  EXPECT_EQ(pool.written.log_of("d"), pool.node("d").run == run ? "the last\n" : "") << "never worked for it";
}

// The answer to a submission may be lost with the connection, or with the scheduler.
TEST_F(RecoveryTest, ASubmissionThatIsSentAgainIsTheSameRun) {
  msg::SubmitT submit = submission(1);
  submit.token = 5;
  pool.receive("client", submit);
  pool.receive("client-again", submit);
  pool.restart();
  pool.receive("client-after-restart", submit);
  for (const char* client : {"client", "client-again", "client-after-restart"})
    EXPECT_EQ(pool.take<msg::AcceptedT>(client).at(0).run, 1u) << client;
  submit.token = 6;
  pool.receive("another", submit);
  EXPECT_EQ(pool.take<msg::AcceptedT>("another").at(0).run, 2u);
  submit.token = 0;
  for (const uint64_t next : {3, 4}) {
    pool.receive("client", submit);
    EXPECT_EQ(pool.take<msg::AcceptedT>("client").back().run, next) << "an earlier release gives no token";
  }
}

TEST_F(RecoveryTest, ASmallRunUsesWhatALargeOneCannotYet) {
  start({"a", "b", "c"}, 3);
  for (const char* name : {"d", "e"}) join(name);
  pool.receive("client", submission(4));  // must wait until the first run ends
  pool.receive("client", submission(1));
  EXPECT_EQ(pool.run(2).state, RunState::Queued);
  EXPECT_EQ(pool.run(3).state, RunState::Forming) << "4 of 5 are enough when the first has ended";
  pool.receive("client", submission(1));
  EXPECT_EQ(pool.run(4).state, RunState::Queued) << "3 of 5 would not be";
  EXPECT_EQ(pool.run(4).detail, "waits behind run 2");
}

TEST_F(RecoveryTest, FilesAreFound) {
  start({"a", "b"});
  snapshot(100, true);
  snapshot(200, false);
  pool.receive("client", msg::FindRunFilesT{{}, run});
  const auto files = pool.take<msg::RunFilesT>("client").at(0);
  const auto snapshots = comm::parse_snapshots(files.snapshots);
  ASSERT_EQ(snapshots.size(), 2u);
  EXPECT_EQ(snapshots[0].step, 200u);
  EXPECT_EQ(snapshots[1].step, 100u) << "kept";
  EXPECT_EQ(files.holders.size(), 2u);
  EXPECT_EQ(files.experiment, submission(2).experiment);
}

}  // namespace
}  // namespace modelet::scheduler::test
