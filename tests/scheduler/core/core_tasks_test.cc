// Runs of towers: each tower is a task, which is a run of its own.
#include <gmock/gmock.h>

#include "base/experiment/towers.h"
#include "comm/control/snapshot_tables.h"
#include "scheduler/plan/makespan.h"
#include "tests/scheduler/core/core_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Names = std::vector<std::string>;

CoreOptions with_store() {
  CoreOptions options;
  options.data_port = 1;
  return options;
}

msg::SubmitT with_divisions(msg::SubmitT submit, uint32_t divisions) {
  Experiment experiment = parse_experiment(submit.experiment, "test");
  experiment.model.divisions = divisions;
  submit.experiment = to_toml(experiment);
  return submit;
}

class TasksTest : public testing::Test {
 protected:
  void join(const std::string& name, const msg::RegisterT& info) {
    msg::RegisterT at_work = info;
    at_work.holder_endpoint = "tcp://" + name + ":9";
    pool.receive(name, at_work);
  }
  void join(const std::string& name) { join(name, registration(name)); }
  void join_all(const Names& names) {
    for (const std::string& name : names) join(name);
  }
  uint64_t submit(const msg::SubmitT& submission, const std::string& key = "") {
    pool.handle(Received{"client", submission,
                         key.empty() ? comm::Identity{} : comm::Identity{comm::Role::kUser, key}});
    const auto accepted = pool.take<msg::AcceptedT>("client");
    return accepted.empty() ? 0 : accepted.front().run;
  }
  // The run for which the node works, and the task.
  uint64_t run_of(const std::string& node) { return pool.node(node).run; }
  uint32_t task_of(const std::string& node) { return pool.run(run_of(node)).task; }
  std::map<std::string, uint32_t> tasks_at_work(const Names& nodes) {
    std::map<std::string, uint32_t> tasks;
    for (const std::string& node : nodes)
      if (run_of(node) != 0) tasks[node] = task_of(node);
    return tasks;
  }
  void begin(const std::string& node) {
    pool.receive(node, prepared(run_of(node), "tcp://" + node + ":1", pool.run(run_of(node)).epoch));
  }
  void begin_all(const Names& nodes) {
    for (const std::string& node : nodes) begin(node);
  }
  // The node, alone at its task, has the files of this step, and so has the store.
  void hold(const std::string& node, uint64_t step, bool keep = false) {
    pool.receive(node, held(run_of(node), pool.run(run_of(node)).epoch, step, 0, {node, ""}, keep));
  }
  void end(const std::string& node, Outcome outcome = Outcome::Ok, uint64_t step = 100,
           const std::string& why = "") {
    const uint64_t run = run_of(node);
    if (outcome != Outcome::Failed) hold(node, step, true);
    pool.receive(node, done(run, outcome, step, why, pool.run(run).epoch));
  }
  void has_left(const std::string& node, double seconds) {
    pool.receive(node, progress(run_of(node), {0.1}, seconds));
  }
  void lose(const std::string& node) { pool.receive(node, msg::LeaveT{}); }
  // The tasks that are told to end at once.
  std::vector<uint64_t> aborted(const std::string& node) {
    std::vector<uint64_t> runs;
    for (const msg::AbortT& abort : pool.take<msg::AbortT>(node)) runs.push_back(abort.run);
    return runs;
  }

  Harness pool{with_store()};
};

TEST_F(TasksTest, EachTaskRunsOnANodeOfItsOwn) {
  join_all({"a", "b", "c"});
  const uint64_t run = submit(submission_of_tasks(4));
  EXPECT_THAT(tasks_at_work({"a", "b", "c"}),
              ElementsAre(std::pair("a", 0), std::pair("b", 1), std::pair("c", 2)));
  const msg::PrepareT prepare = pool.take<msg::PrepareT>("b").at(0);
  EXPECT_EQ(prepare.task, 1u);
  EXPECT_EQ(prepare.division, comm::to_text(comm::ContentId{}));
  EXPECT_EQ(prepare.size, 1u);
  EXPECT_EQ(parse_experiment(prepare.experiment, "task").model.towers, 4u) << "the node makes the tower's of it";
  EXPECT_EQ(prepare.shape->labels, 125u);
  EXPECT_EQ(prepare.shape->all_labels, 500u);
  EXPECT_EQ(prepare.shape->test_rows, 0u);
  begin_all({"a", "b", "c"});
  EXPECT_EQ(pool.run(run).state, RunState::Running);
  EXPECT_EQ(pool.run(run).tasks, 4u);
  EXPECT_EQ(pool.run(run).tasks_at_work, 3u);
  EXPECT_THAT(pool.run(run).node_names, ElementsAre("a", "b", "c"));
}

TEST_F(TasksTest, ANodeTakesTheNextTaskWhenItIsFree) {
  join_all({"a", "b"});
  const uint64_t run = submit(submission_of_tasks(3));
  begin_all({"a", "b"});
  const uint64_t first = run_of("b");
  end("b");
  EXPECT_THAT(tasks_at_work({"a", "b"}), ElementsAre(std::pair("a", 0), std::pair("b", 2)));
  EXPECT_EQ(pool.run(run).tasks_done, 1u);
  begin("b");
  const uint64_t third = run_of("b");
  end("b");
  EXPECT_EQ(pool.run(run).state, RunState::Running);
  const uint64_t zeroth = run_of("a");
  end("a");
  EXPECT_EQ(pool.run(run).state, RunState::Finished);
  pool.receive("client", msg::FindRunFilesT{{}, run});
  EXPECT_THAT(pool.take<msg::RunFilesT>("client").at(0).tasks, ElementsAre(zeroth, first, third));
}

TEST_F(TasksTest, NodesThatJoinTakeTasks) {
  const uint64_t run = submit(submission_of_tasks(2));
  EXPECT_EQ(pool.run(run).state, RunState::Queued);
  join("a");
  join("b");
  EXPECT_THAT(tasks_at_work({"a", "b"}), ElementsAre(std::pair("a", 0), std::pair("b", 1)));
}

TEST_F(TasksTest, ALostNodeCostsItsOwnTask) {
  join_all({"a", "b"});
  submit(submission_of_tasks(2));
  begin_all({"a", "b"});
  hold("b", 40);
  const uint64_t at_b = run_of("b"), at_a = run_of("a");
  lose("b");
  EXPECT_EQ(pool.run(at_b).state, RunState::Waiting);
  EXPECT_EQ(pool.run(at_a).epoch, 1u);
  pool.inbox.clear();
  end("a");
  ASSERT_EQ(run_of("a"), at_b) << "it goes on where a node is free";
  const auto prepares = pool.take<msg::PrepareT>("a");
  ASSERT_EQ(prepares.size(), 1u);
  EXPECT_EQ(prepares[0].task, 1u);
  EXPECT_EQ(prepares[0].snapshot->step, 40u);
}

// What a run continues from: a snapshot whose file lies in the store.
comm::Snapshot start_at(uint64_t step) {
  return {.step = step, .keep = true, .files = {{"modelet-0.safetensors", {}, 10, {""}}}};
}

TEST_F(TasksTest, EachTaskContinuesFromItsOwnCheckpoint) {
  join_all({"a", "b"});
  msg::SubmitT resumed = submission_of_tasks(2);
  resumed.resume_tasks.push_back(msg::to_table(comm::Snapshot()));
  resumed.resume_tasks.push_back(msg::to_table(start_at(30)));
  const uint64_t run = submit(resumed);
  const auto at_a = pool.take<msg::PrepareT>("a"), at_b = pool.take<msg::PrepareT>("b");
  EXPECT_EQ(at_a.at(0).snapshot, nullptr);
  ASSERT_NE(at_b.at(0).snapshot, nullptr);
  EXPECT_EQ(msg::snapshot_of(*at_b[0].snapshot), start_at(30));
  begin_all({"a", "b"});
  // Nothing is left to do for the one that was at its end, so it writes nothing.
  pool.receive("b", done(run_of("b"), Outcome::Ok, 30, "", 1));
  end("a");
  EXPECT_EQ(pool.run(run).state, RunState::Finished);
}

TEST_F(TasksTest, ALostTaskReturnsToWhereItContinuedFrom) {
  join_all({"a", "b"});
  msg::SubmitT resumed = submission_of_tasks(2);
  for (const uint64_t step : {20, 30}) resumed.resume_tasks.push_back(msg::to_table(start_at(step)));
  submit(resumed);
  begin_all({"a", "b"});
  lose("b");
  pool.inbox.clear();
  join("c");
  const auto prepares = pool.take<msg::PrepareT>("c");
  ASSERT_EQ(prepares.size(), 1u);
  EXPECT_EQ(msg::snapshot_of(*prepares[0].snapshot), start_at(30));
}

TEST_F(TasksTest, ATaskThatHasBegunGoesBeforeOthersOfItsRun) {
  join_all({"a", "b"});
  submit(submission_of_tasks(4));
  begin_all({"a", "b"});
  lose("b");
  end("a");
  EXPECT_EQ(task_of("a"), 1u);
}

TEST_F(TasksTest, ATaskThatFailsEndsTheRunWithItsError) {
  join_all({"a", "b"});
  const uint64_t run = submit(submission_of_tasks(3));
  begin_all({"a", "b"});
  const uint64_t other = run_of("a");
  end("b", Outcome::Failed, 5, "its loss is not finite");
  EXPECT_EQ(pool.run(run).state, RunState::Failed);
  EXPECT_THAT(pool.run(run).detail, HasSubstr("task 1: node 'b' failed at step 5: its loss is not finite"));
  EXPECT_THAT(aborted("a"), ElementsAre(other));
  EXPECT_EQ(run_of("b"), 0u) << "no other task of the run begins";
}

// A task of the run has begun elsewhere, so the fault is this node's.
TEST_F(TasksTest, ANodeThatCannotPrepareATaskFailsOnlyUntilOneHasBegun) {
  join_all({"a", "b"});
  const uint64_t run = submit(submission_of_tasks(2));
  begin("a");
  end("b", Outcome::Failed, 0, "its owner does not lend the data");
  EXPECT_EQ(pool.run(run).state, RunState::Running);
  end("a");
  EXPECT_EQ(task_of("a"), 1u);
}

TEST_F(TasksTest, AStopEndsAllTasksWithTheirFiles) {
  join_all({"a", "b"});
  const uint64_t run = submit(submission_of_tasks(3));
  begin_all({"a", "b"});
  pool.inbox.clear();
  pool.receive("client", msg::StopRunT{{}, run});
  EXPECT_EQ(pool.run(run).state, RunState::Stopping);
  for (const char* node : {"a", "b"}) EXPECT_EQ(pool.take<msg::StopT>(node).size(), 1u);
  end("a", Outcome::Interrupted, 50);
  EXPECT_EQ(pool.run(run).state, RunState::Stopping);
  end("b", Outcome::Interrupted, 50);
  EXPECT_EQ(pool.run(run).state, RunState::Stopped);
  EXPECT_EQ(pool.run(run).detail, "stopped with 0 of 3 tasks done, 0 at work");
}

TEST_F(TasksTest, OnlyTheWholeRunCanBeStopped) {
  join("a");
  submit(submission_of_tasks(2));
  pool.receive("client", msg::StopRunT{{}, run_of("a")});
  EXPECT_THAT(pool.take<msg::RefusedT>("client").at(0).reason,
              HasSubstr("only the whole run can be stopped"));
}

TEST_F(TasksTest, TasksOfSeveralRunsShareThePool) {
  join_all({"a", "b", "c", "d"});
  const uint64_t first = submit(submission_of_tasks(8)), second = submit(submission_of_tasks(8));
  begin_all({"a", "b", "c", "d"});
  EXPECT_EQ(pool.run(first).tasks_at_work, 4u);
  for (const char* node : {"a", "b", "c"}) {
    end(node);
    begin(node);
  }
  EXPECT_EQ(pool.run(first).tasks_at_work, 2u)
      << "the third node came back when each had two, to the first that came";
  EXPECT_EQ(pool.run(second).tasks_at_work, 2u);
}

TEST_F(TasksTest, KeysShareThePoolBeforeRunsDo) {
  const auto join_with_key = [&](const std::string& name) {
    msg::RegisterT info = registration(name);
    info.holder_endpoint = "tcp://" + name + ":9";
    info.holder_key = info.fetch_key = std::string(2 * comm::kKeyBytes, 'a');
    pool.handle(Received{name, info, {comm::Role::kAgent, "agents"}});
  };
  submit(submission_of_tasks(8), "ann");
  submit(submission_of_tasks(8), "ann");
  submit(submission_of_tasks(8), "bob");
  std::map<std::string, int> nodes;
  for (const std::string name : {"a", "b", "c", "d"}) {
    join_with_key(name);
    ++nodes[pool.run(run_of(name)).submitter];
  }
  EXPECT_EQ(nodes["ann"], 2);
  EXPECT_EQ(nodes["bob"], 2);
}

TEST_F(TasksTest, ARunHasAtMostTheNodesThatItWants) {
  join_all({"a", "b", "c"});
  submit(submission_of_tasks(3, 2));
  EXPECT_THAT(tasks_at_work({"a", "b", "c"}), ElementsAre(std::pair("a", 0), std::pair("b", 1)));
}

TEST_F(TasksTest, ATowerThatIsTooLargeForANodeGetsTheSmallestGroup) {
  for (const std::string name : {"a", "b", "c"}) {
    msg::RegisterT info = registration(name);
    info.memory_bytes = uint64_t{330} << 20;
    join(name, info);
  }
  msg::SubmitT large = submission_of_tasks(1 + 1);
  large.shape->features = 20000;
  submit(large);
  EXPECT_EQ(pool.run(2).node_names.size(), 2u) << pool.run(2).detail;
  EXPECT_THAT(pool.run(3).detail, HasSubstr("waits for 2 nodes, 1 is of the pool's 3 free"));
}

TEST_F(TasksTest, TasksOutliveTheScheduler) {
  join_all({"a", "b"});
  const uint64_t run = submit(submission_of_tasks(4));
  begin_all({"a", "b"});
  hold("b", 40);
  end("a");
  begin("a");
  const uint64_t at_a = run_of("a"), at_b = run_of("b");
  pool.restart();
  pool.handle(Tick{});
  EXPECT_EQ(pool.run(run).tasks_done, 1u);
  for (const auto& [name, works_for] : {std::pair("a", at_a), std::pair("b", at_b)}) {
    msg::RegisterT info = registration(name);
    info.run = works_for;
    info.epoch = 1;
    join(name, info);
  }
  EXPECT_EQ(run_of("a"), at_a);
  pool.pass(10, {"a", "b"});
  for (const char* node : {"a", "b"}) {
    while (run_of(node) != 0) {
      if (pool.run(run_of(node)).state == RunState::Forming) begin(node);
      end(node);
    }
  }
  EXPECT_EQ(pool.run(run).state, RunState::Finished) << pool.run(run).detail;
}

// ---- copies

class CopiesTest : public TasksTest {
 protected:
  // Two tasks on two of three nodes, with this much to go.
  void start(double left_of_a, double left_of_b, const Names& nodes = {"a", "b"}) {
    join_all(nodes);
    run = submit(submission_of_tasks(2));
    begin_all(nodes);
    pool.now += 1;
    has_left("a", left_of_a);
    has_left("b", left_of_b);
  }
  uint64_t run = 0;
};

TEST_F(CopiesTest, AFreeNodeTakesACopyOfTheTaskThatHasLongestToGo) {
  start(100, 200);
  hold("b", 40);
  pool.inbox.clear();
  join("c");
  ASSERT_NE(run_of("c"), 0u);
  EXPECT_EQ(task_of("c"), 1u);
  EXPECT_EQ(pool.take<msg::PrepareT>("c").at(0).snapshot->step, 40u);
  join("d");
  EXPECT_EQ(task_of("d"), 0u);
  join("e");
  EXPECT_EQ(run_of("e"), 0u) << "no task has more than two";
  EXPECT_EQ(pool.run(run).tasks_at_work, 2u);
}

TEST_F(CopiesTest, TheFirstResultCounts) {
  start(100, 200);
  join("c");
  begin("c");
  const uint64_t copy = run_of("c"), original = run_of("b");
  end("c");
  EXPECT_THAT(aborted("b"), ElementsAre(original));
  end("b");  // it had finished before it heard of that
  end("a");
  EXPECT_EQ(pool.run(run).state, RunState::Finished);
  pool.receive("client", msg::FindRunFilesT{{}, run});
  EXPECT_EQ(pool.take<msg::RunFilesT>("client").at(0).tasks.at(1), copy);
}

TEST_F(CopiesTest, ThereIsNoneWhileATaskWaits) {
  start(100, 200);
  join("c");
  begin("c");
  const uint64_t copy = run_of("c"), lost = run_of("a");
  pool.inbox.clear();
  lose("a");
  EXPECT_THAT(aborted("c"), ElementsAre(copy));
  pool.receive("c", done(copy, Outcome::Failed, 0, "aborted"));
  EXPECT_EQ(run_of("c"), lost);
}

TEST_F(CopiesTest, AnotherRunGetsTheNodeOfACopy) {
  start(100, 200);
  join("c");
  begin("c");
  const uint64_t copy = run_of("c");
  pool.inbox.clear();
  submit(submission(1));
  EXPECT_THAT(aborted("c"), ElementsAre(copy));
}

TEST_F(CopiesTest, TheOneThatStillHasANodeGoesOn) {
  start(100, 200);
  join("c");
  begin("c");
  const uint64_t copy = run_of("c"), original = run_of("b");
  lose("b");
  EXPECT_EQ(pool.run(original).state, RunState::Stopped);
  EXPECT_EQ(pool.run(copy).state, RunState::Running);
}

TEST_F(CopiesTest, ATaskThatIsNearlyDoneGetsNone) {
  join_all({"a", "b"});
  run = submit(submission_of_tasks(2));
  pool.now += 10;  // they take so long to start
  begin_all({"a", "b"});
  has_left("a", 19);
  has_left("b", 0);
  join("c");
  EXPECT_EQ(run_of("c"), 0u);
  has_left("a", 21);
  pool.receive("c", msg::HeartbeatT{});
  pool.handle(Tick{});
  EXPECT_EQ(task_of("c"), 0u);
}

TEST_F(CopiesTest, ACopyThatFailsEndsNothing) {
  start(100, 200);
  join("c");
  begin("c");
  end("c", Outcome::Failed, 3, "its disk is broken");
  EXPECT_EQ(pool.run(run).state, RunState::Running);
}

TEST_F(CopiesTest, ARestartForgetsNone) {
  start(100, 200);
  join("c");
  begin("c");
  const uint64_t original = run_of("b"), copy = run_of("c");
  pool.restart();
  pool.handle(Tick{});
  EXPECT_EQ(pool.run(original).task, 1u);
  EXPECT_EQ(pool.run(copy).task, 1u);
  EXPECT_EQ(pool.run(copy).parent, run);
}

// ---- what is said and kept of them

TEST_F(TasksTest, TheListHasTheTasksThatNodesWorkFor) {
  join("a");
  const uint64_t run = submit(submission_of_tasks(3));
  begin("a");
  pool.receive("client", msg::ListRunsT{});
  const auto list = pool.take<msg::RunListT>("client").at(0);
  ASSERT_EQ(list.runs.size(), 2u);
  EXPECT_EQ(list.runs[1]->parent, run);
  EXPECT_EQ(list.runs[1]->name, "run.000");
}

TEST_F(TasksTest, TheRestOfTheRunIsPredicted) {
  join_all({"a", "b"});
  const uint64_t run = submit(submission_of_tasks(5));
  begin_all({"a", "b"});
  pool.now += 10;
  has_left("a", 20);
  has_left("b", 20);
  pool.handle(Tick{});
  // Each task takes 30 s as a whole. Three are left for two nodes.
  EXPECT_EQ(pool.run(run).seconds_left, 20 + 30 + 30);
}

TEST(MakespanTest, EachNodeTakesTheNextTaskWhenItIsFree) {
  EXPECT_EQ(makespan({0, 0}, std::vector<double>{3, 1, 1, 4}), 6);
  EXPECT_EQ(makespan({5}, {}), 5);
}

TEST_F(TasksTest, WatchersHearOfEachTask) {
  join("a");
  const uint64_t run = submit(submission_of_tasks(2));
  pool.receive("watcher", msg::WatchT{{}, run});
  begin("a");
  end("a");
  std::vector<std::string> states;
  for (const msg::RunEventT& event : pool.take<msg::RunEventT>("watcher")) {
    const auto json = nlohmann::json::parse(event.json);
    states.push_back(json.at("event").get<std::string>());
    if (json.contains("task")) states.back() = json.at("state").get<std::string>() + " " + json.at("task").dump();
  }
  EXPECT_THAT(states, ElementsAre("started", "started 0", "finished 0"));
}

TEST_F(TasksTest, ResultsAreKeptUntilTheRunHasEnded) {
  join("a");
  submit(submission_of_tasks(2));
  begin("a");
  const std::string result =
      comm::to_text(msg::snapshot_of(held(run_of("a"), 1, 100, 0, {"a", ""}, true)).files.at(0).content);
  end("a");
  EXPECT_TRUE(pool.core.data_in_use().contains(result));
  begin("a");
  end("a");
  EXPECT_FALSE(pool.core.data_in_use().contains(result));
  EXPECT_TRUE(pool.core.results().contains(result));
}

TEST_F(TasksTest, ARunIsForgottenWithItsTasks) {
  CoreOptions options = with_store();
  options.max_runs = 1;
  pool = Harness(options);
  join("a");
  submit(submission_of_tasks(2));
  for (int task = 0; task < 2; ++task) {
    begin("a");
    end("a");
  }
  const uint64_t next = submit(submission(1));
  ASSERT_NE(next, 0u);
  EXPECT_EQ(pool.core.runs().size(), 1u);
  EXPECT_EQ(pool.written.read().runs.size(), 1u);
}

TEST_F(TasksTest, WhatCannotWorkIsRefused) {
  const auto refusal = [&](const msg::SubmitT& submit) {
    pool.receive("client", submit);
    const auto refused = pool.take<msg::RefusedT>("client");
    return refused.empty() ? std::string() : refused.front().reason;
  };
  const msg::SubmitT good = submission_of_tasks(2);
  EXPECT_THAT(refusal(good), IsEmpty());
  msg::SubmitT undivided = good;
  undivided.tasks.pop_back();
  EXPECT_THAT(refusal(undivided), HasSubstr("not divided into the 2 towers"));
  msg::SubmitT too_many = good;
  too_many.tasks[0] = {501, 10};
  EXPECT_THAT(refusal(too_many), HasSubstr("more labels than there are"));
  msg::SubmitT resumed = good;
  resumed.resume_files = std::make_unique<msg::SnapshotT>();
  EXPECT_THAT(refusal(resumed), HasSubstr("--resume"));
  resumed = good;
  resumed.resume_tasks.push_back(std::make_unique<msg::SnapshotT>());
  EXPECT_THAT(refusal(resumed), HasSubstr("not a checkpoint of 2 towers"));
  msg::SubmitT divided = submission(1);
  divided.division = good.division;
  EXPECT_THAT(refusal(divided), HasSubstr("no towers"));
  msg::SubmitT too_wide = submission_of_tasks(1024);
  EXPECT_THAT(refusal(with_divisions(too_wide, 2)), HasSubstr("at most 1024"));
  pool = Harness{};
  EXPECT_THAT(refusal(good), HasSubstr("scheduler that keeps files"));
}

}  // namespace
}  // namespace modelet::scheduler::test
