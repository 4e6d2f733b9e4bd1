#include "node_agent/train/progress/run_schedule.h"

#include "node_agent/replicas/rank_grid.h"

namespace modelet::agent {

// With several replicas the interval decides what is learned, because replicas synchronise for a snapshot. So it
// must be a fixed number, and not follow from measurements.
uint32_t snapshot_every(const TrainJob& job) {
  constexpr uint32_t kWithReplicas = 1600;
  if (!job.snapshots.enabled) return 0;
  const uint32_t wanted = job.snapshots.every_steps;
  return wanted == 0 && job.replicas() > 1 ? kWithReplicas : wanted;
}

Schedule schedule_of(const TrainJob& job, uint64_t steps_per_epoch, uint64_t resumed_step) {
  return {job.experiment.train, steps_per_epoch, job.replicas() > 1 ? job.experiment.exchange.local_steps : 0,
          snapshot_every(job), job.other_samples ? resumed_step : 0};
}

uint64_t rounds_to_come(const TrainJob& job, uint64_t step, uint64_t most) {
  constexpr uint64_t kMostSteps = 100'000'000;
  const Schedule schedule = schedule_of(job, job.experiment.cluster.epoch_steps, step);
  if (schedule.total_steps() > kMostSteps) return most + 1;
  uint64_t rounds = 0;
  const auto self = static_cast<size_t>(job.replica()), replicas = static_cast<size_t>(job.replicas());
  for (uint64_t begin = step; step < schedule.total_steps() && rounds <= most;) {
    if (schedule.sync_after(++step) == Schedule::Sync::kNone) continue;
    const uint32_t count = job.experiment.cluster.owners_per_round;
    if (participants_of_round(job.experiment.train.seed, begin, replicas, count)[self] != 0) ++rounds;
    begin = step;
  }
  return rounds;
}

}  // namespace modelet::agent
