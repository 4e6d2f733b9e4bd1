// Runs that outlive their nodes.
#include <gmock/gmock.h>

#include "tests/scheduler/core/recovery_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

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

TEST_F(RecoveryTest, HoldersHaveNames) {
  start({"a", "b"});
  snapshot(100);
  pool.receive("a", held(run, 1, 100, 0, {"a", std::string(5000, 'x'), "no name\n", "c"}));
  const std::string record = pool.written.read().runs.at(0).text;
  EXPECT_THAT(record, HasSubstr("\\\"c\\\""));
  EXPECT_THAT(record, testing::Not(HasSubstr("xxx")));
  EXPECT_THAT(record, testing::Not(HasSubstr("no name")));
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
  const comm::Snapshot from = msg::snapshot_of(*prepares["c"].snapshot);
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
  EXPECT_EQ(prepares["a"].snapshot, nullptr);
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
  EXPECT_EQ(msg::snapshot_of(*prepares["b"].snapshot).step, 100u);
}

// Seed 131663 of the simulation: the run began anew.
TEST_F(RecoveryTest, AHolderThatGoesWhileThePlanIsMadeIsWaitedFor) {
  start({"a", "b", "c"});
  join("d");
  pool.receive("d", msg::LeaveRequestT{});  // so it gets no work
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
  EXPECT_EQ(msg::snapshot_of(*prepares["b"].snapshot).step, 100u);
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
  EXPECT_EQ(msg::snapshot_of(*prepares["b"].snapshot).step, 100u);
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
  EXPECT_EQ(status().state, RunState::Waiting) << "they may come back";
  pool.receive("c", done(run, Outcome::Failed, 0, "", 2));  // it was in a group with b
  pass(50, {"c"}, 0);
  EXPECT_EQ(status().state, RunState::Waiting);
  pass(20, {"c"}, 0);
  get_ready({"c"});
  EXPECT_EQ(msg::snapshot_of(*prepares["c"].snapshot).step, 100u);
  EXPECT_EQ(status().step, 100u);
  EXPECT_EQ(status().stable_step, 100u) << "what comes after it is computed again";
}

TEST_F(RecoveryTest, HoldersThatComeBackSoonSaveTheNewestFiles) {
  pool.core = Core(pool.options = {.data_port = 1});
  start({"a", "b"});
  for (uint32_t rank = 0; const char* name : {"a", "b"})
    pool.receive(name, held(run, 1, 100, rank++, {name, ""}, true));
  snapshot(200);
  join("c");
  for (const char* name : {"a", "b"}) pool.receive(name, msg::LeaveT{});
  EXPECT_EQ(status().state, RunState::Waiting);
  pass(50, {"c"}, 0);
  for (const char* name : {"a", "b"}) join(name);
  get_ready({"a", "b"});
  EXPECT_EQ(msg::snapshot_of(*prepares["a"].snapshot).step, 200u);
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
  EXPECT_EQ(msg::snapshot_of(*prepares["a"].snapshot).step, 100u);
  pool.receive("a", done(run, Outcome::Ok, 200, "", 2));
  pool.receive("a", held(run, 2, 200, 0, {"a"}, true));
  EXPECT_EQ(status().state, RunState::Finished) << "one holder in a pool of one";
}

// A store whose ended runs kept everything would soon be full.
TEST_F(RecoveryTest, WhatAnEndedRunHasLeftMakesRoom) {
  start({"a", "b"});
  snapshot(100);
  EXPECT_THAT(pool.core.data_in_use(), Not(IsEmpty()));
  pool.receive("a", done(run, Outcome::Ok, 200));
  pool.receive("b", done(run, Outcome::Ok, 200));
  for (const uint32_t rank : {0u, 1u})
    pool.receive(rank == 0 ? "a" : "b", held(run, 1, 200, rank, {"a", "b", ""}, true));
  EXPECT_EQ(status().state, RunState::Finished);
  EXPECT_THAT(pool.core.data_in_use(), IsEmpty());
  EXPECT_THAT(pool.core.results(), Not(IsEmpty()));
  for (const auto& [address, key] : pool.core.results())
    EXPECT_THAT(pool.core.known_data(), testing::Contains(address)) << "superseded snapshots make room first";
}

TEST_F(RecoveryTest, FilesOfASupersededSnapshotAreNotKnownAnyMore) {
  start({"a", "b"});
  const auto addresses_of = [](const msg::SnapshotHeldT& message) {
    std::set<std::string> addresses;
    for (const comm::SnapshotFile& file : msg::snapshot_of(message).files)
      addresses.insert(comm::to_text(file.content));
    return addresses;
  };
  const auto first = held(run, 1, 100, 0, {"a", "b"}), second = held(run, 1, 150, 0, {"a", "b"});
  pool.receive("a", first);
  EXPECT_THAT(pool.core.known_data(), testing::IsSupersetOf(addresses_of(first))) << "it may become stable";
  snapshot(150);
  EXPECT_THAT(pool.core.known_data(), testing::IsSupersetOf(addresses_of(second)));
  EXPECT_THAT(pool.core.known_data(), testing::Not(testing::IsSupersetOf(addresses_of(first))));
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
  EXPECT_EQ(msg::snapshot_of(*prepares["a"].snapshot).step, 200u);
}

TEST_F(RecoveryTest, LastFilesThatNobodyBringsAreWrittenAgain) {
  start({"a", "b"});
  snapshot(100);
  all_done(Outcome::Ok, 200);
  pass(700, {"a", "b"}, 200);
  EXPECT_EQ(status().state, RunState::Forming) << status().detail;
  EXPECT_EQ(status().recoveries, 1u);
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
  EXPECT_EQ(msg::snapshot_of(*prepares["b"].snapshot).step, 20u);
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
    return msg::snapshot_of(*prepares["b"].snapshot).step;
  };
  EXPECT_EQ(fail(), 30u);
  EXPECT_EQ(fail(), 20u);
}

}  // namespace
}  // namespace modelet::scheduler::test
