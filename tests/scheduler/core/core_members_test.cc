// Nodes that leave runs and join them.
#include <gmock/gmock.h>

#include "tests/scheduler/core/recovery_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;
using testing::ElementsAre;
using testing::HasSubstr;

class MembersTest : public RecoveryTest {};

TEST_F(MembersTest, WhoWishesToLeaveDoesWithoutLoss) {
  start({"a", "b"}, 2);
  join("c");
  snapshot(100);
  pool.inbox.clear();
  pool.receive("b", msg::LeaveRequestT{{}, 60, "its owner is back"});
  EXPECT_TRUE(pool.take<msg::ReleasedT>("b").empty());
  EXPECT_EQ(pool.take<msg::StopT>("a").size(), 1u);
  all_done(Outcome::Interrupted, 130);
  EXPECT_EQ(status().state, RunState::Running) << "its files are on their way";
  snapshot(130, true);
  EXPECT_THAT(status().node_names, ElementsAre("a", "c"));
  EXPECT_EQ(status().recoveries, 0u);
  EXPECT_TRUE(pool.take<msg::ReleasedT>("b").empty()) << "others fetch files from it";
  get_ready({"a", "c"});
  EXPECT_EQ(msg::snapshot_of(*prepares["c"].snapshot).step, 130u);
  EXPECT_EQ(pool.take<msg::ReleasedT>("b").size(), 1u);
  pool.receive("client", submission(1));
  EXPECT_TRUE(pool.take<msg::PrepareT>("b").empty()) << "it gets no work any more";
}

TEST_F(MembersTest, WhoAloneHasTheFilesOfAWaitingRunIsKept) {
  start({"a"});
  pool.receive("a", msg::LeaveRequestT{{}, 60, "its owner is back"});
  pool.receive("a", held(run, 1, 130, 0, {"a"}, true));
  pool.receive("a", done(run, Outcome::Interrupted, 130));
  EXPECT_EQ(status().state, RunState::Waiting);
  EXPECT_TRUE(pool.take<msg::ReleasedT>("a").empty());
  join("b");
  get_ready({"b"});
  EXPECT_EQ(pool.take<msg::ReleasedT>("a").size(), 1u);
}

TEST_F(MembersTest, ANodeThatCameBackMayHaveLostItsFiles) {
  start_with_all({"a", "b"});
  snapshot(100);
  pool.receive("b", msg::LeaveT{});
  pool.receive("a", done(run, Outcome::Failed, 101));
  pool.receive("a", msg::LeaveRequestT{{}, 60, "its owner is back"});
  pass(2, {"a"}, 0);
  join("b", 2);
  EXPECT_TRUE(pool.take<msg::ReleasedT>("a").empty());
  join("c");
  get_ready({"b", "c"});
  EXPECT_EQ(pool.take<msg::ReleasedT>("a").size(), 1u);
}

TEST_F(MembersTest, AFreeNodeMayLeaveAtOnce) {
  join("a");
  for (int i = 0; i < 2; ++i) {
    pool.receive("a", msg::LeaveRequestT{});
    EXPECT_EQ(pool.take<msg::ReleasedT>("a").size(), 1u);
  }
}

TEST_F(MembersTest, AnAgentThatLeavesAloneIsNotPreparedAgainAndAgain) {
  start({"a"});
  pool.inbox.clear();
  pool.receive("a", msg::LeaveRequestT{{}, 60, ""});
  pool.receive("a", held(run, 1, 12, 0, {"a"}, true));
  pool.receive("a", done(run, Outcome::Interrupted, 12));
  EXPECT_EQ(status().state, RunState::Waiting);
  pass(20, {"a"}, 12);
  EXPECT_TRUE(pool.take<msg::PrepareT>("a").empty());
  EXPECT_EQ(pool.node("a").run, 0u);
}

TEST_F(MembersTest, AnAdministratorDrainsANode) {
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

// Half of the model fits into the memory of a node, and the whole model does not.
TEST_F(MembersTest, AModelThatNoLongerFitsWaitsForANode) {
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

TEST_F(MembersTest, ARunGrowsToItsMostNodes) {
  join("a");
  begin(submission_of(1, {.max_nodes = 2}));
  snapshot(10);
  const auto stops_for = [&](const Names& members) {
    pool.inbox.clear();
    pool.receive("a", progress(run, std::vector<double>(members.size(), 1)));
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
TEST_F(MembersTest, ARunGrowsWhileOthersWaitUnlessTheyWouldWaitLonger) {
  const auto stops = [&] {
    pool.inbox.clear();
    pool.receive("a", progress(run, {1}));
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

// One of the newcomers goes while the group stops for them. The others help as far as replicas stay equal.
TEST_F(MembersTest, ReplicasGoOnWithEquallyManyNodes) {
  for (const char* name : {"a", "b"}) join(name);
  begin(submission_of(2, {.replicas = 2, .max_nodes = 6}));
  snapshot(10);
  for (const char* name : {"c", "d", "e", "f"}) join(name);
  pool.inbox.clear();
  pool.receive("a", progress(run, {1, 1}));
  ASSERT_EQ(pool.take<msg::StopT>("a").size(), 1u) << pool.log;
  pool.receive("c", msg::LeaveT{});
  snapshot(20, true);
  all_done(Outcome::Interrupted, 20);
  ASSERT_EQ(status().node_names.size(), 4u);
  EXPECT_THAT(status().node_names, testing::IsSupersetOf({"a", "b"}));
  get_ready(status().node_names);
}

TEST_F(MembersTest, ANodeThatComesHelps) {
  start({"a", "b", "c"});
  snapshot(10);
  pool.receive("c", msg::LeaveT{});
  get_ready({"a", "b"});
  snapshot(20);
  join("d");
  pool.inbox.clear();
  pool.receive("a", progress(run, {1, 1}));
  EXPECT_EQ(pool.take<msg::StopT>("a").size(), 1u) << pool.log;
  snapshot(30, true);
  all_done(Outcome::Interrupted, 30);
  EXPECT_EQ(status().node_names.size(), 3u);
  EXPECT_THAT(status().node_names, testing::Contains("d"));
  EXPECT_EQ(status().recoveries, 1u);
}

// The run does not wait until each file has two holders. That happens while the next group trains.
TEST_F(MembersTest, ANodeIsTakenInAsSoonAsTheLastFilesAreKnown) {
  start({"a", "b", "c"});
  snapshot(10);
  pool.receive("c", msg::LeaveT{});
  get_ready({"a", "b"});
  snapshot(20);
  join("d");
  pool.receive("a", progress(run, {1, 1}));
  all_done(Outcome::Interrupted, 30);
  pool.receive("a", held(run, 2, 30, 0, {"a"}, true));
  EXPECT_EQ(status().state, RunState::Running) << "b has not said what it has";
  pool.receive("b", held(run, 2, 30, 1, {"b"}, true));
  ASSERT_EQ(status().state, RunState::Forming) << status().detail;
  EXPECT_EQ(status().stable_step, 20u);
  get_ready({"a", "b", "d"});
  EXPECT_EQ(msg::snapshot_of(*prepares["d"].snapshot).step, 30u);
  pass(6, {"a", "b"}, 40);
  EXPECT_EQ(status().state, RunState::Forming);
  get_ready({"a", "b"});
  EXPECT_EQ(msg::snapshot_of(*prepares["a"].snapshot).step, 30u) << "d had nothing that nobody else has";
  pass(6, {"a"}, 40);
  get_ready({"a"});
  EXPECT_EQ(msg::snapshot_of(*prepares["a"].snapshot).step, 20u) << "b alone had files of step 30";
}

TEST_F(MembersTest, WhoLeavesBringsItsFilesToSafetyFirst) {
  start({"a", "b", "c"});
  snapshot(20);
  pool.receive("c", msg::LeaveRequestT{});
  all_done(Outcome::Interrupted, 30);
  for (uint32_t rank = 0; const char* name : {"a", "b", "c"})
    pool.receive(name, held(run, 1, 30, rank++, {name}, true));
  EXPECT_EQ(status().state, RunState::Running) << status().detail;
  for (uint32_t rank = 0; const char* name : {"a", "b", "c"})
    pool.receive(name, held(run, 1, 30, rank++, {name, "a", "b"}, true));
  EXPECT_EQ(status().state, RunState::Forming) << status().detail;
}

}  // namespace
}  // namespace modelet::scheduler::test
