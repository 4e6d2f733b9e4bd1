// Runs that are planned anew because a node is slower than planned.
#include <gmock/gmock.h>

#include <cmath>

#include "scheduler/core/core.h"
#include "tests/scheduler/core/core_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;
using testing::HasSubstr;

// Runs on two nodes that offer the same speed. One of them turns out to be slow.
class ReplanTest : public CoreTest {
 protected:
  void SetUp() override {
    run = running(2, 10);
    owner = pool.take<msg::PrepareT>("a").front().owner;
    pool.take<msg::PrepareT>("b");
  }
  // Sends reports of the first rank, one second apart.
  void report(int count, double a, double b, double eta = 1000) {
    for (int i = 0; i < count; ++i) {
      pool.pass(1, agents, run, 10);
      pool.receive("a", progress(run, {a, b}, eta));
    }
  }
  bool told_to_stop() { return pool.take<msg::StopT>("b").size() == 1; }
  void stop_with_checkpoint() {
    pool.receive("a", event(run, msg::EventKind::Interrupted));
    for (const std::string& agent : agents) pool.end(agent, run, Outcome::Interrupted, 12);
  }
  static auto held_by(const std::vector<uint32_t>& owner, uint32_t rank) {
    return std::count(owner.begin(), owner.end(), rank);
  }

  uint64_t run = 0;
  std::vector<uint32_t> owner;
};

TEST_F(ReplanTest, TheGroupStartsAgainWithFewerModeletsOnTheSlowNode) {
  pool.receive("client", msg::WatchT{{}, run});
  report(12, 1, 3);
  ASSERT_TRUE(told_to_stop());
  EXPECT_EQ(pool.run(run).state, RunState::Running);
  EXPECT_THAT(pool.run(run).detail, HasSubstr("node 'b' is 3.00 times slower than planned"));
  EXPECT_EQ(pool.run(run).straggler, "b");
  EXPECT_NEAR(pool.run(run).straggler_excess, 2, 1e-9);
  EXPECT_DOUBLE_EQ(pool.node("b").compute_seconds, 3);
  EXPECT_NEAR(pool.node("a").wait_share, 2.0 / 3, 1e-9);

  const uint64_t other = submit(1);  // must not take a node that has stopped already
  pool.receive("a", event(run, msg::EventKind::Interrupted));
  pool.end("b", run, Outcome::Interrupted, 12);
  for (int i = 0; i < 8; ++i) {
    pool.receive("b", msg::HeartbeatT{});
    pool.pass(1, {"a"}, run, 12);
  }
  EXPECT_EQ(pool.run(other).state, RunState::Queued);
  pool.end("a", run, Outcome::Interrupted, 12);
  EXPECT_EQ(pool.run(run).state, RunState::Forming);
  const auto prepare = pool.take<msg::PrepareT>("b");
  ASSERT_EQ(prepare.size(), 1u);
  EXPECT_EQ(prepare[0].epoch, 2u);
  EXPECT_EQ(msg::snapshot_of(*prepare[0].snapshot).step, 12u);
  EXPECT_EQ(prepare[0].node_names, agents);
  EXPECT_LT(held_by(prepare[0].owner, 1), held_by(owner, 1));
  for (const std::string& agent : agents) pool.receive(agent, prepared(run, "tcp://" + agent + ":1", 2));
  EXPECT_EQ(pool.run(run).state, RunState::Running);
  EXPECT_EQ(pool.run(run).replans, 1u);
  EXPECT_EQ(pool.run(run).straggler, "") << "nothing has been measured yet";

  bool told = false;
  for (const auto& message : pool.inbox["client"]) {
    if (const auto* event = std::get_if<msg::RunEventT>(&message)) {
      EXPECT_THAT(event->json, testing::Not(HasSubstr("interrupted")));
      told = told || event->json.find("\"replanned\"") != std::string::npos;
    }
    if (const auto* status = std::get_if<msg::RunStatusT>(&message)) {
      EXPECT_FALSE(has_ended(status->state));
    }
  }
  EXPECT_TRUE(told);
  for (const std::string& agent : agents) pool.end(agent, run, Outcome::Ok, 20, 2);
  EXPECT_EQ(pool.run(run).state, RunState::Finished);
  EXPECT_EQ(pool.run(other).state, RunState::Forming);
}

TEST_F(ReplanTest, OnlyALastingAndWorthwhileDifferenceCounts) {
  report(8, 1, 3);  // not for long enough
  report(1, 1, 1.1);
  report(8, 1, 3);
  report(1, 3, 1);  // another node is slow
  report(8, 1, 3);
  report(1, 1, 1);
  report(30, 1, 1.14);
  EXPECT_FALSE(told_to_stop());
  report(30, 1, 3, 0);  // nearly done
  EXPECT_FALSE(told_to_stop());
  pool.receive("b", progress(run, {1, 3}));  // only rank 0 reports times
  report(2, 1, 1);
  EXPECT_FALSE(told_to_stop());
}

TEST_F(ReplanTest, ReportsThatMakeNoSenseChangeNothing) {
  const double nan = std::nan("");
  for (int i = 0; i < 20; ++i) {
    pool.pass(1, agents, run, 10);
    for (const std::vector<double>& bad :
         std::vector<std::vector<double>>{{1}, {1, 3, 3}, {1, -3}, {1, 1e300}, {1, nan}, {1, HUGE_VAL}})
      pool.receive("a", progress(run, bad));
    msg::RunEventT no_wait = progress(run, {1, 3});
    no_wait.times[1] = {3, 0, -1};
    pool.receive("a", no_wait);
  }
  EXPECT_FALSE(told_to_stop());
  EXPECT_DOUBLE_EQ(pool.node("b").compute_seconds, 0);
  EXPECT_EQ(pool.run(run).state, RunState::Running);
}

TEST_F(ReplanTest, AUserStopsItMeanwhile) {
  report(12, 1, 3);
  ASSERT_TRUE(told_to_stop());
  pool.end("b", run, Outcome::Interrupted, 12);
  pool.receive("client", msg::StopRunT{{}, run});
  EXPECT_EQ(pool.run(run).state, RunState::Stopping);
  pool.end("a", run, Outcome::Interrupted, 12);
  EXPECT_EQ(pool.run(run).state, RunState::Stopped);
  EXPECT_EQ(pool.node("a").run, 0u);
  EXPECT_EQ(pool.node("b").run, 0u);
}

TEST_F(ReplanTest, AUserStopsItBeforeItGoesOn) {
  report(12, 1, 3);
  stop_with_checkpoint();
  ASSERT_EQ(pool.run(run).state, RunState::Forming);
  pool.receive("client", msg::StopRunT{{}, run});
  EXPECT_EQ(pool.run(run).state, RunState::Stopped);
  EXPECT_THAT(pool.run(run).detail, HasSubstr("step 12"));
}

TEST_F(ReplanTest, ANodeThatDiesMeanwhileIsDoneWithout) {
  report(12, 1, 3);
  pool.end("b", run, Outcome::Interrupted, 12);
  pool.pass(6, {"a"}, run, 12);
  EXPECT_EQ(pool.run(run).state, RunState::Forming);
  EXPECT_THAT(pool.run(run).node_names, testing::ElementsAre("a"));
  EXPECT_EQ(pool.run(run).recoveries, 1u);
}

TEST_F(ReplanTest, WithoutItsFilesItGoesOnFromTheOnesBefore) {
  report(12, 1, 3);
  for (const std::string& agent : agents) pool.receive(agent, done(run, Outcome::Interrupted, 12));
  EXPECT_EQ(pool.run(run).state, RunState::Running) << "the files may still come";
  pool.pass(61, agents);
  EXPECT_EQ(pool.run(run).state, RunState::Forming);
  EXPECT_EQ(pool.run(run).step, 0u);
}

TEST_F(ReplanTest, ARunThatEndsMeanwhileHasFinished) {
  report(12, 1, 3);
  for (const std::string& agent : agents) pool.end(agent, run, Outcome::Ok, 12);
  EXPECT_EQ(pool.run(run).state, RunState::Finished);
  EXPECT_EQ(pool.run(run).straggler, "") << "nobody is slow any more";
  EXPECT_EQ(pool.node("b").run, 0u);
}

TEST(Replan, ARunHasItsLimit) {
  Harness pool(CoreOptions{.replan_after = 0, .most_replans = 0});
  const std::vector<std::string> agents = {"a", "b"};
  for (const std::string& agent : agents) pool.receive(agent, registration(agent));
  pool.receive("client", submission(2));
  for (const std::string& agent : agents) pool.receive(agent, prepared(1, "tcp://" + agent + ":1"));
  for (int i = 0; i < 20; ++i) pool.receive("a", progress(1, {1, 3}));
  EXPECT_EQ(pool.run(1).straggler, "b");
  EXPECT_TRUE(pool.take<msg::StopT>("b").empty());
}

// The plan has work for only two of four nodes, because one node claims to be a hundred times as fast as it
// is.
class SpareNodesTest : public CoreTest {
 protected:
  void join(const std::string& name, double gflops) {
    msg::RegisterT info = registration(name);
    info.cores = 16;  // with fewer cores the claim would be capped
    info.gflops = gflops;
    info.memory_gbps = gflops / 5;
    agents.push_back(name);
    pool.receive(name, info);
  }
  // Planned seconds of computing in a step, for nodes that are as fast as they say.
  static std::vector<double> planned_seconds(const std::vector<double>& gflops) {
    std::vector<NodeCapacity> nodes;
    for (const double rate : gflops)
      nodes.push_back({.memory_bytes = uint64_t{4} << 30, .gflops = rate, .memory_gbps = rate / 5});
    const msg::SubmitT submitted = submission(1);
    const msg::ShapeT& data = *submitted.shape;
    const Plan plan = make_plan(parse_experiment(submitted.experiment, "test"),
                                {.features = data.features,
                                 .labels = data.labels,
                                 .train_rows = data.train_rows,
                                 .test_rows = data.test_rows,
                                 .features_per_row = data.features_per_row,
                                 .labels_per_row = data.labels_per_row},
                                nodes);
    std::vector<double> seconds;
    for (const NodePlan& node : plan.nodes) seconds.push_back(node.seconds_per_step);
    return seconds;
  }
  void start(uint32_t nodes, const std::vector<std::string>& members) {
    run = submit(nodes);
    prepare(run, members);
    ASSERT_EQ(pool.run(run).state, RunState::Running);
    ASSERT_EQ(pool.run(run).node_names, members);
    for (const std::string& agent : agents) pool.inbox[agent].clear();
  }
  void report(int count, const std::vector<std::string>& members, const std::vector<double>& seconds) {
    for (int i = 0; i < count; ++i) {
      pool.pass(1, members, run, 10);
      for (const std::string& agent : agents) {
        if (std::ranges::count(members, agent) != 0) continue;
        const uint64_t other = pool.node(agent).run;
        pool.receive(agent, msg::HeartbeatT{{}, 0, other, 0, other == 0 ? 0 : pool.run(other).epoch});
      }
      pool.receive(members[0], progress(run, seconds));
    }
  }
  bool told_to_stop() { return pool.take<msg::StopT>("a").size() == 1; }
  void stop_with_checkpoint(const std::vector<std::string>& members) {
    pool.receive(members[0], event(run, msg::EventKind::Interrupted));
    for (const std::string& agent : members) pool.end(agent, run, Outcome::Interrupted, 12);
  }

  uint64_t run = 0;
};

TEST_F(SpareNodesTest, ANodeAloneThatIsSlowerThanItSaidGetsHelp) {
  join("a", 5000);
  join("b", 50);
  join("c", 50);
  start(0, {"a"});
  report(12, {"a"}, {1});
  ASSERT_TRUE(told_to_stop());
  EXPECT_THAT(pool.run(run).detail, HasSubstr("node 'a' is"));
  stop_with_checkpoint({"a"});
  EXPECT_EQ(pool.run(run).state, RunState::Forming);
  const auto prepare = pool.take<msg::PrepareT>("b");
  ASSERT_EQ(prepare.size(), 1u);
  EXPECT_EQ(prepare[0].epoch, 2u);
  EXPECT_EQ(msg::snapshot_of(*prepare[0].snapshot).step, 12u);
  EXPECT_THAT(prepare[0].node_names, testing::IsSupersetOf({"b", "c"}));
  for (const std::string& name : prepare[0].node_names)
    pool.receive(name, prepared(run, "tcp://" + name + ":1", 2));
  EXPECT_EQ(pool.run(run).state, RunState::Running);
  EXPECT_EQ(pool.run(run).replans, 1u);
}

TEST_F(SpareNodesTest, ANodeAloneAboutAsFastAsPlannedIsLeftAlone) {
  join("a", 5000);
  join("b", 50);
  start(0, {"a"});
  const double planned = planned_seconds({5000})[0];
  report(30, {"a"}, {1.9 * planned});
  EXPECT_FALSE(told_to_stop());
  report(8, {"a"}, {100 * planned});  // not for long enough
  report(1, {"a"}, {planned});
  report(8, {"a"}, {100 * planned});
  EXPECT_FALSE(told_to_stop());
  report(5, {"a"}, {100 * planned});
  EXPECT_TRUE(told_to_stop());
}

TEST_F(SpareNodesTest, OnlyNodesThatTheRunAskedForAndNobodyElseWants) {
  join("a", 5000);
  join("b", 50);
  start(1, {"a"});
  report(30, {"a"}, {1});
  EXPECT_FALSE(told_to_stop()) << "one node was asked for";
  pool.end("a", run, Outcome::Ok, 12);

  start(2, {"a"});
  const uint64_t small = submit(1);
  prepare(small, {"b"});
  join("c", 50);
  const uint64_t waiting = submit(2);  // with the node of the small run it can begin
  report(30, {"a"}, {1});
  EXPECT_FALSE(told_to_stop()) << "the free node belongs to the run that waits";
  pool.receive("client", msg::StopRunT{{}, waiting});
  pool.end("b", small, Outcome::Ok, 12);
  pool.receive("c", msg::LeaveT{});
  const uint64_t large =
      submit(2);  // can begin only when this run has ended, which then gives both nodes back
  report(12, {"a"}, {1});
  EXPECT_TRUE(told_to_stop()) << pool.log;
  pool.receive("client", msg::StopRunT{{}, large});
  const uint64_t faster = submit(1);  // while 'a' stops
  prepare(faster, {"b"});
  stop_with_checkpoint({"a"});
  EXPECT_EQ(pool.run(run).node_names, (std::vector<std::string>{"a"})) << "goes on as before";
  EXPECT_EQ(pool.run(run).state, RunState::Forming);
  EXPECT_EQ(pool.run(faster).state, RunState::Running);
}

TEST_F(SpareNodesTest, ASpareNodeTakesTheWorkOfASlowOne) {
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) join(name, 50);
  const std::vector<std::string> six = {"a", "b", "c", "d", "e", "f"};
  start(0, six);  // the partition has 6 modelets
  std::vector<double> seconds = planned_seconds(std::vector<double>(6, 50));
  seconds.back() *= 30;
  report(12, six, seconds);
  ASSERT_TRUE(told_to_stop());
  stop_with_checkpoint(six);
  const auto prepare = pool.take<msg::PrepareT>("g");
  ASSERT_EQ(prepare.size(), 1u);
  const std::vector<std::string> others = prepare[0].node_names;
  EXPECT_THAT(others, testing::Not(testing::Contains("f")));
  EXPECT_EQ(pool.node("f").run, 0u);
  // The slow node does not come back when the next one is slow: the scheduler remembers that it is slow.
  for (const std::string& name : others) pool.receive(name, prepared(run, "tcp://" + name + ":1", 2));
  seconds = planned_seconds(std::vector<double>(others.size(), 50));
  seconds.back() *= 30;
  report(12, others, seconds);
  pool.receive(others[0], event(run, msg::EventKind::Interrupted));
  for (const std::string& name : others) pool.end(name, run, Outcome::Interrupted, 20, 2);
  EXPECT_EQ(pool.run(run).replans, 2u);
  EXPECT_THAT(pool.run(run).node_names, testing::Not(testing::Contains("f")));
}

}  // namespace
}  // namespace modelet::scheduler::test
