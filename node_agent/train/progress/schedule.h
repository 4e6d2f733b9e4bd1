// Schedule: says what is due after which step of a run. It is a pure function of the experiment and the
// number of samples, so all ranks get the same answers, and so does a run that is resumed. In all functions
// `step` is the number of steps that are done.
#pragma once

#include <cstdint>

#include "base/experiment/experiment.h"

namespace modelet::agent {

class Schedule {
 public:
  // `local_steps`: steps between two synchronisations of replicas; 0: there is only one replica.
  // `snapshot_every`: steps between two snapshots; 0: steps do not decide when snapshots are due.
  // `steps_before`: steps that an earlier run has done with other samples; this run begins at the first
  // whole epoch after them.
  Schedule(const Experiment::Train& train, uint64_t steps_per_epoch, uint32_t local_steps,
           uint32_t snapshot_every = 0, uint64_t steps_before = 0);

  uint64_t first_step() const { return first_; }  // steps done when the run begins
  uint64_t total_steps() const { return total_; }
  uint64_t steps_per_epoch() const { return steps_per_epoch_; }
  // The epoch that the last of `step` steps belongs to, from 1.
  uint64_t epoch(uint64_t step) const { return (step - 1) / steps_per_epoch_ + 1; }

  bool ends_epoch(uint64_t step) const { return step % steps_per_epoch_ == 0; }
  bool evaluates_after(uint64_t step) const;  // only at the end of an epoch
  bool checkpoint_after(uint64_t step) const;
  bool snapshot_after(uint64_t step) const { return snapshot_every_ > 0 && step % snapshot_every_ == 0; }
  bool progress_after(uint64_t step) const { return step % log_every_ == 0 || step == total_; }

  enum class Sync { kNone, kAverage, kExact };
  // Replicas synchronise every few steps (kAverage), and become equal where the common model is needed
  // (kExact).
  Sync sync_after(uint64_t step) const;

  // Whether the ranks exchange anything between this step and the next one.
  bool exchanges_after(uint64_t step) const;

  struct Left {
    uint64_t steps = 0, evaluations = 0, checkpoints = 0;
  };
  Left left_after(uint64_t step) const;

 private:
  const uint64_t steps_per_epoch_, first_, total_;
  const uint32_t evaluate_every_, checkpoint_every_, log_every_, local_steps_, snapshot_every_;
};

}  // namespace modelet::agent
