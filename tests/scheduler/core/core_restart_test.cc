// Runs that outlive their scheduler.
#include "tests/scheduler/core/recovery_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;

class RestartTest : public RecoveryTest {};

TEST_F(RestartTest, GroupsAreTakenOverAsTheyAre) {
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

TEST_F(RestartTest, WhoDoesNotComeBackIsLost) {
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

TEST_F(RestartTest, TheListSaysWhoIsLostAndWhyItGoesOnWithFewer) {
  start({"a", "b", "c"});
  for (uint32_t rank = 0; rank < 3; ++rank)  // a has all files, so it can go on alone
    pool.receive(status().node_names[rank], held(run, 1, 100, rank, {"a", rank == 2 ? "b" : "c"}));
  pool.restart();
  join("a", 1, run, 1);
  pass(7, {"a"}, 150);
  get_ready({"a"});
  ASSERT_EQ(status().state, RunState::Running);
  const std::string why =
      "goes on with 1 of 3 nodes: node 'b', node 'c' did not come back after the scheduler was restarted";
  EXPECT_EQ(status().detail, why);
  pool.restart();
  join("a", 1, run, 2);
  pass(7, {"a"}, 160);
  EXPECT_EQ(status().detail, why) << "the next scheduler knows it, too";
}

// Seed 777752 of the simulation: the run ended with files that lay on one disk.
TEST_F(RestartTest, AMemberThatMayComeBackCountsAsAPlaceForFiles) {
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

TEST_F(RestartTest, AJobThatEndedMeanwhileIsReported) {
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

TEST_F(RestartTest, APartOfTheLastFilesIsNotForgotten) {
  start({"a", "b"});
  all_done(Outcome::Ok, 200);
  pool.receive("a", held(run, 1, 200, 0, {"a", "b"}, true));  // and its report is confirmed
  pool.restart();
  for (const char* name : {"a", "b"}) join(name);
  pool.receive("b", held(run, 1, 200, 1, {"b", "a"}, true));
  EXPECT_EQ(status().state, RunState::Finished) << status().detail;
}

TEST_F(RestartTest, AGroupThatWasBeingFormedIsFormedAnew) {
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

TEST_F(RestartTest, AStartThatWasLostWithItsConnectionIsToldAgain) {
  start({"a"});
  pool.inbox.clear();
  auto info = registration("a");
  info.run = run;
  info.epoch = 1;
  pool.receive("a over a new connection", info);
  EXPECT_EQ(pool.take<msg::StartT>("a over a new connection").size(), 1u);
}

TEST_F(RestartTest, AFileThatReachesTheStoreLateCounts) {
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

// Its nodes shared a folder, as those of earlier releases could.
TEST_F(RestartTest, ARunThatWroteIntoASharedFolderIsGivenUp) {
  start({"a"});
  Records records = pool.written.read();
  nlohmann::json submitted = nlohmann::json::parse(records.runs.at(0).submission);
  submitted["out"] = "/shared/run";
  records.runs.at(0).submission = submitted.dump();
  pool.core = Core(pool.options, records);
  pool.handle(Tick{});
  EXPECT_TRUE(pool.core.runs().empty());
  EXPECT_THAT(pool.log, testing::HasSubstr("submit it again, with --resume and that folder"));
}

TEST_F(RestartTest, EventsOutliveTheScheduler) {
  start({"a"});
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"started"})", 1, 1});
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"started"})", 1, 1});  // sent again
  pool.restart();
  pool.receive("late", msg::WatchT{{}, run});
  const auto events = pool.take<msg::RunEventT>("late");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].number, 1u);
}

TEST_F(RestartTest, AnEventThatTheFormerSchedulerHasWrittenDownComesOnce) {
  start({"a"});
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"started"})", 1, 1});
  pool.restart();
  join("a", 1, run, 1);
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"started"})", 1, 1});  // again: its Alive was lost
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"progress"})", 1, 2});
  pool.receive("late", msg::WatchT{{}, run});
  EXPECT_EQ(pool.take<msg::RunEventT>("late").size(), 2u);
}

}  // namespace
}  // namespace modelet::scheduler::test
