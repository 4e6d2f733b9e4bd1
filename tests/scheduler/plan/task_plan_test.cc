// What is predicted of a run of tasks.
#include "scheduler/plan/task_plan.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "scheduler/plan/placement.h"
#include "tests/scheduler/core/submission.h"

namespace modelet::scheduler {
namespace {

using testing::HasSubstr;

class TaskPlanTest : public testing::Test {
 protected:
  TaskPlanTest() {
    const auto submit = test::submission_of_tasks(6);
    experiment = parse_experiment(submit.experiment, "test");
    shape = {
        .features = 1000, .labels = 500, .train_rows = 10000, .features_per_row = 20, .labels_per_row = 3};
  }
  static NodeCapacity node(double rate, uint64_t memory = uint64_t{4} << 30) {
    return {.name = "n", .cores = 1, .memory_bytes = memory, .gflops = 50 * rate, .memory_gbps = 10 * rate};
  }
  TaskPlan plan(const std::vector<NodeCapacity>& nodes, const Link& link = {}) const {
    return plan_tasks(experiment, shape, nodes, link);
  }
  Experiment experiment;
  DataShape shape;
};

TEST_F(TaskPlanTest, TasksOnEqualNodesTakeTurns) {
  const TaskPlan on_two = plan({node(1), node(1)});
  EXPECT_EQ(on_two.tasks, 6u);
  EXPECT_DOUBLE_EQ(on_two.makespan, 3 * on_two.seconds[0]);
  EXPECT_DOUBLE_EQ(plan({node(1)}).makespan, 6 * on_two.seconds[0]);
}

// By brute force: after 5 of its tasks the fast node would still be busy when the slow one is free.
TEST_F(TaskPlanTest, ASlowNodeTakesFewer) {
  const TaskPlan mixed = plan({node(0.25), node(1)});
  const double slow = mixed.seconds[0], fast = mixed.seconds[1];
  EXPECT_GT(slow, 3 * fast);
  double fast_free = 0, slow_free = 0;
  for (int task = 0; task < 6; ++task)
    (fast_free <= slow_free ? fast_free : slow_free) += fast_free <= slow_free ? fast : slow;
  EXPECT_DOUBLE_EQ(mixed.makespan, std::max(fast_free, slow_free));
}

TEST_F(TaskPlanTest, ANodeWithoutRoomTakesNone) {
  const TaskPlan mixed = plan({node(1), node(1, 1 << 20)});
  EXPECT_EQ(mixed.seconds[1], 0);
  EXPECT_DOUBLE_EQ(mixed.makespan, 6 * mixed.seconds[0]);
  EXPECT_THROW(plan({node(1, 1 << 20)}), Error);
}

TEST_F(TaskPlanTest, SaysWhichIsFaster) {
  const std::vector<NodeCapacity> nodes(4, node(1));
  const TaskPlan slow_links = plan(nodes, {.bytes_per_second = 1e6, .round_trip_seconds = 0.02});
  EXPECT_EQ(slow_links.network.nodes, 1u);
  EXPECT_LT(slow_links.makespan, slow_links.network.seconds);
  EXPECT_THAT(to_text(slow_links), HasSubstr("on the fastest node alone: towers are faster here"));
  experiment.model.divisions = 4;
  EXPECT_THAT(to_text(plan(nodes, {.bytes_per_second = 1e12, .round_trip_seconds = 0})),
              HasSubstr("the one network is faster here"));
}

TEST_F(TaskPlanTest, SkippedSamplesTakeNoTime) {
  const double all = plan({node(1)}).makespan;
  experiment.model.tower_samples = 0.5f;
  EXPECT_LT(plan({node(1)}).makespan, all);
}

}  // namespace
}  // namespace modelet::scheduler
