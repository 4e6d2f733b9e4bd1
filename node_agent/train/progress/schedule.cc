#include "node_agent/train/progress/schedule.h"

namespace modelet::agent {
namespace {

// The number of multiples of `every` in (begin, end]; `end` always counts.
uint64_t multiples_and_end(uint64_t begin, uint64_t end, uint64_t every) {
  if (begin >= end) return 0;
  return end / every - begin / every + (end % every == 0 ? 0 : 1);
}

}  // namespace

Schedule::Schedule(const Experiment::Train& train, uint64_t steps_per_epoch, uint32_t local_steps,
                   uint32_t snapshot_every, uint64_t steps_before)
    : steps_per_epoch_(steps_per_epoch),
      first_((steps_before + steps_per_epoch - 1) / steps_per_epoch * steps_per_epoch),
      total_(first_ + steps_per_epoch * train.epochs),
      evaluate_every_(train.evaluate_every),
      checkpoint_every_(train.checkpoint_every),
      log_every_(train.log_every),
      local_steps_(local_steps),
      snapshot_every_(snapshot_every) {}

bool Schedule::evaluates_after(uint64_t step) const {
  if (!ends_epoch(step)) return false;
  return step == total_ || (evaluate_every_ > 0 && step / steps_per_epoch_ % evaluate_every_ == 0);
}

bool Schedule::checkpoint_after(uint64_t step) const {
  if (step == total_) return true;
  return checkpoint_every_ == 0 ? ends_epoch(step) : step % checkpoint_every_ == 0;
}

Schedule::Sync Schedule::sync_after(uint64_t step) const {
  if (local_steps_ == 0) return Sync::kNone;
  if (checkpoint_after(step) || evaluates_after(step) || snapshot_after(step)) return Sync::kExact;
  return step % local_steps_ == 0 ? Sync::kAverage : Sync::kNone;
}

bool Schedule::exchanges_after(uint64_t step) const {
  return local_steps_ > 0 || progress_after(step) || ends_epoch(step) || checkpoint_after(step) ||
         snapshot_after(step);
}

Schedule::Left Schedule::left_after(uint64_t step) const {
  const uint64_t epochs_done = step / steps_per_epoch_, epochs = total_ / steps_per_epoch_;
  return {
      .steps = total_ - step,
      .evaluations = multiples_and_end(epochs_done, epochs, evaluate_every_ == 0 ? epochs : evaluate_every_),
      .checkpoints =
          multiples_and_end(step, total_, checkpoint_every_ == 0 ? steps_per_epoch_ : checkpoint_every_)};
}

}  // namespace modelet::agent
