#include "shard/layers/learning_rate.h"

#include <gtest/gtest.h>

namespace modelet::shard {
namespace {

Experiment::Train schedule(ScheduleKind kind) {
  Experiment::Train train;
  train.learning_rate = 1;
  train.schedule = kind;
  train.final_fraction = 0.1f;
  train.step_epochs = 2;
  train.step_factor = 0.5f;
  return train;
}

TEST(LearningRateTest, WarmUpRisesLinearlyToTheFullRate) {
  Experiment::Train train = schedule(ScheduleKind::kConstant);
  train.warmup_steps = 4;
  const float expected[] = {0.25f, 0.5f, 0.75f, 1, 1, 1};
  for (uint64_t step = 0; step < 6; ++step)
    EXPECT_FLOAT_EQ(learning_rate(train, step, 10, 100), expected[step]);
}

TEST(LearningRateTest, LinearAndCosineEndAtTheFinalFraction) {
  for (const ScheduleKind kind : {ScheduleKind::kLinear, ScheduleKind::kCosine}) {
    Experiment::Train train = schedule(kind);
    train.warmup_steps = 10;
    EXPECT_FLOAT_EQ(learning_rate(train, 10, 10, 110), 1);
    EXPECT_NEAR(learning_rate(train, 60, 10, 110), 0.55, 1e-6) << "half way";
    EXPECT_NEAR(learning_rate(train, 110, 10, 110), 0.1, 1e-6);
    for (uint64_t step = 11; step < 110; ++step)
      EXPECT_LT(learning_rate(train, step, 10, 110), learning_rate(train, step - 1, 10, 110));
  }
}

TEST(LearningRateTest, StepReducesEverySoManyEpochs) {
  const Experiment::Train train = schedule(ScheduleKind::kStep);
  EXPECT_FLOAT_EQ(learning_rate(train, 0, 10, 100), 1);
  EXPECT_FLOAT_EQ(learning_rate(train, 19, 10, 100), 1);
  EXPECT_FLOAT_EQ(learning_rate(train, 20, 10, 100), 0.5f);
  EXPECT_FLOAT_EQ(learning_rate(train, 45, 10, 100), 0.25f);
}

}  // namespace
}  // namespace modelet::shard
