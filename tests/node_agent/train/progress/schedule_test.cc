// What is due after which step. Also checks, step by step, that the remaining work agrees with these rules.
#include "node_agent/train/progress/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace modelet::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kStepsPerEpoch = 5;

Experiment::Train options() {
  Experiment::Train train;
  train.epochs = 4;
  train.log_every = 7;
  return train;
}

template <class Due>
std::vector<uint64_t> steps_with(const Due& due) {
  std::vector<uint64_t> steps;
  for (uint64_t step = 1; step <= 4 * kStepsPerEpoch; ++step)
    if (due(step)) steps.push_back(step);
  return steps;
}

TEST(Schedule, IsDueByCountAndAtTheEnd) {
  Experiment::Train train = options();
  const Schedule usual(train, kStepsPerEpoch, 0);
  EXPECT_EQ(usual.total_steps(), 20u);
  EXPECT_EQ(usual.epoch(1), 1u);
  EXPECT_EQ(usual.epoch(5), 1u);
  EXPECT_EQ(usual.epoch(6), 2u);
  EXPECT_THAT(steps_with([&](uint64_t s) { return usual.progress_after(s); }), ElementsAre(7, 14, 20));
  EXPECT_THAT(steps_with([&](uint64_t s) { return usual.evaluates_after(s); }), ElementsAre(5, 10, 15, 20));
  EXPECT_THAT(steps_with([&](uint64_t s) { return usual.checkpoint_after(s); }), ElementsAre(5, 10, 15, 20));
  EXPECT_THAT(steps_with([&](uint64_t s) { return usual.exchanges_after(s); }),
              ElementsAre(5, 7, 10, 14, 15, 20));
  EXPECT_THAT(steps_with([&](uint64_t s) { return usual.sync_after(s) != Schedule::Sync::kNone; }),
              IsEmpty());

  train.evaluate_every = 3;
  train.checkpoint_every = 6;
  const Schedule rarely(train, kStepsPerEpoch, 0);
  EXPECT_THAT(steps_with([&](uint64_t s) { return rarely.evaluates_after(s); }), ElementsAre(15, 20));
  EXPECT_THAT(steps_with([&](uint64_t s) { return rarely.checkpoint_after(s); }), ElementsAre(6, 12, 18, 20));
  train.evaluate_every = 0;
  const Schedule once(train, kStepsPerEpoch, 0);
  EXPECT_THAT(steps_with([&](uint64_t s) { return once.evaluates_after(s); }), ElementsAre(20));
}

TEST(Schedule, ReplicasAreOneWhereTheirModelIsNeeded) {
  Experiment::Train train = options();
  train.evaluate_every = 0;
  train.checkpoint_every = 8;
  const Schedule schedule(train, kStepsPerEpoch, 3);
  using Sync = Schedule::Sync;
  EXPECT_THAT(steps_with([&](uint64_t s) { return schedule.sync_after(s) == Sync::kExact; }),
              ElementsAre(8, 16, 20));
  EXPECT_THAT(steps_with([&](uint64_t s) { return schedule.sync_after(s) == Sync::kAverage; }),
              ElementsAre(3, 6, 9, 12, 15, 18));
  EXPECT_EQ(steps_with([&](uint64_t s) { return schedule.exchanges_after(s); }).size(), 20u);
}

TEST(Schedule, ReplicasSettleForSnapshotsThatStepsSay) {
  Experiment::Train train = options();
  train.log_every = train.checkpoint_every = 1000;
  const Schedule alone(train, kStepsPerEpoch, 0, 7), replicas(train, kStepsPerEpoch, 3, 7);
  using Sync = Schedule::Sync;
  EXPECT_THAT(steps_with([&](uint64_t s) { return alone.snapshot_after(s); }), ElementsAre(7, 14));
  EXPECT_TRUE(alone.exchanges_after(7));
  EXPECT_FALSE(alone.exchanges_after(8));
  EXPECT_EQ(alone.sync_after(7), Sync::kNone);
  EXPECT_EQ(replicas.sync_after(7), Sync::kExact);
  EXPECT_EQ(replicas.sync_after(6), Sync::kAverage);
}

TEST(Schedule, WhatIsLeftIsWhatIsDueInEachStepThatIsLeft) {
  for (const uint32_t evaluate_every : {0u, 1u, 2u, 3u, 4u, 9u})
    for (const uint32_t checkpoint_every : {0u, 1u, 4u, 6u, 19u, 20u, 100u}) {
      Experiment::Train train = options();
      train.evaluate_every = evaluate_every;
      train.checkpoint_every = checkpoint_every;
      const Schedule schedule(train, kStepsPerEpoch, 0);
      Schedule::Left expected;
      for (uint64_t step = schedule.total_steps() + 1; step-- > 0;) {
        const Schedule::Left left = schedule.left_after(step);
        EXPECT_EQ(left.steps, expected.steps) << step;
        EXPECT_EQ(left.evaluations, expected.evaluations) << step << ", every " << evaluate_every;
        EXPECT_EQ(left.checkpoints, expected.checkpoints) << step << ", every " << checkpoint_every;
        ++expected.steps;
        expected.evaluations += schedule.evaluates_after(step);
        expected.checkpoints += schedule.checkpoint_after(step);
      }
    }
}

TEST(Schedule, StepsBeforeAreCountedOnFromAWholeEpoch) {
  for (const auto& [before, first] :
       std::vector<std::pair<uint64_t, uint64_t>>{{0, 0}, {1, 5}, {5, 5}, {14, 15}}) {
    const Schedule schedule(options(), kStepsPerEpoch, 0, 0, before);
    EXPECT_EQ(schedule.first_step(), first);
    EXPECT_EQ(schedule.total_steps(), first + 4 * kStepsPerEpoch);
  }
}

}  // namespace
}  // namespace modelet::agent
