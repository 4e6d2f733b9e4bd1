// RunStatistics: counts and measures a run on one rank: losses, samples, bytes, and how long steps,
// evaluations and checkpoints take. From this it computes the speed of the run and the time that is left.
// Used by the training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/system/clock.h"
#include "node_agent/replicas/rank_grid.h"
#include "node_agent/train/progress/step_times.h"

namespace modelet::agent {

// The mean loss of some steps. A replica that takes no part in a round has none in its steps.
class MeanLoss {
 public:
  MeanLoss() = default;
  MeanLoss(double sum, uint64_t steps) : sum_(sum), steps_(steps) {}
  void add(std::optional<double> loss) {
    if (!loss) {
      ++without_;
      return;
    }
    sum_ += *loss;
    ++steps_;
  }
  // The mean over replicas, weighted by the steps in which each has had a loss.
  double over_replicas(RankGrid& grid, uint64_t step) const {
    const uint64_t all = steps_ + without_;
    return grid.mean(step, mean(), without_ == 0 ? 1 : static_cast<double>(steps_) / static_cast<double>(all));
  }
  uint64_t steps() const { return steps_; }
  double sum() const { return sum_; }
  double mean() const { return sum_ / static_cast<double>(steps_); }
  void reset() { *this = {}; }

 private:
  double sum_ = 0;
  uint64_t steps_ = 0, without_ = 0;
};

class RunStatistics {
 public:
  explicit RunStatistics(const Clock& clock) : clock_(clock) {}  // `clock` must outlive this object
  // Continues with the values that the run had in an earlier process.
  void resume(double train_seconds) { train_seconds_ = train_seconds; }
  void resume(const MeanLoss& since_gathered, const MeanLoss& since_epoch) {
    since_gathered_ = since_gathered;
    since_epoch_ = since_epoch;
  }

  // Call these around each step, including what follows it among replicas. `totals` are those of the grid.
  // `samples` counts those of all replicas; there is no `loss` if this one has done nothing.
  void begin_step(const RankGrid::Totals& totals);
  void end_step(std::optional<double> loss, size_t samples, const RankGrid::Totals& totals);

  // Gathers from all ranks, for the steps since the last call, the mean loss and where the time went
  // (StepTimes::report). All ranks must call it after the same step. Replicas that are ahead wait here for
  // the others, and this time counts as training. Losses leave this rank only if `with_loss` is set.
  struct Common {
    std::optional<double> loss;
    nlohmann::json nodes;
  };
  Common gather(RankGrid& grid, uint64_t step, bool with_loss);

  // `samples` were evaluated, or a checkpoint was written, in `seconds`.
  void add_evaluation(size_t samples, double seconds);
  void add_checkpoint(double seconds);
  // The classifiers of labels were fitted, which counts as training.
  void add_classifiers(double seconds);

  const MeanLoss& since_gathered() const { return since_gathered_; }
  MeanLoss& since_epoch() { return since_epoch_; }
  const MeanLoss& since_epoch() const { return since_epoch_; }

  // Evaluations and checkpoints do not count here.
  double train_seconds() const { return train_seconds_; }  // for the whole run
  // These count since the start or resume.
  double samples_per_second() const;
  double bytes_per_step() const;
  double wait_fraction() const;  // share of this rank's time in steps, [0, 1]
  // The time for what is left, if everything takes as long as it has taken so far. What has not happened
  // yet counts as 0.
  struct Left {
    uint64_t steps = 0, evaluated_samples = 0, checkpoints = 0, fitted_classifiers = 0;
  };
  double seconds_left(const Left& left) const;

 private:
  // Statistics of something that happens from time to time.
  struct Rate {
    double seconds = 0;
    uint64_t count = 0;
    double of(uint64_t more) const {
      return count == 0 ? 0 : seconds / static_cast<double>(count) * static_cast<double>(more);
    }
  };

  const Clock& clock_;
  double train_seconds_ = 0;
  Rate steps_, evaluated_, checkpoints_, classifiers_;
  uint64_t samples_ = 0, bytes_sent_ = 0;
  StepTimes times_;
  MeanLoss since_gathered_, since_epoch_;
  // For the current step.
  double began_ = 0;
  uint64_t bytes_before_ = 0;
};

}  // namespace modelet::agent
