// Learning-rate schedules. A pure function of the step, so a resumed run continues where it was.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "base/experiment/experiment.h"

namespace modelet::shard {

// Learning rate of `step`, counted from 0, of `total` steps with `steps_per_epoch` each epoch.
inline float learning_rate(const Experiment::Train& train, uint64_t step, uint64_t steps_per_epoch,
                           uint64_t total) {
  if (step < train.warmup_steps)
    return train.learning_rate * static_cast<float>(step + 1) / static_cast<float>(train.warmup_steps);
  const auto after = static_cast<float>(step - train.warmup_steps);
  const float done = after / static_cast<float>(std::max<uint64_t>(
                                 total - std::min<uint64_t>(total, train.warmup_steps), 1));
  switch (train.schedule) {
    case ScheduleKind::kConstant:
      return train.learning_rate;
    case ScheduleKind::kLinear:
      return train.learning_rate * (1 - (1 - train.final_fraction) * done);
    case ScheduleKind::kCosine:
      return train.learning_rate *
             (train.final_fraction +
              (1 - train.final_fraction) * 0.5f * (1 + std::cos(std::numbers::pi_v<float> * done)));
    case ScheduleKind::kStep:
      return train.learning_rate *
             std::pow(train.step_factor, static_cast<float>(step / steps_per_epoch / train.step_epochs));
  }
  return train.learning_rate;
}

}  // namespace modelet::shard
