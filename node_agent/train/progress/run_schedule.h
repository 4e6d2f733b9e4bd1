// RunSchedule: the schedule of a rank's job, and what follows from it before the job begins. Pure functions.
#pragma once

#include <cstdint>

#include "node_agent/train/job/train_job.h"
#include "node_agent/train/progress/schedule.h"

namespace modelet::agent {

// Steps between two snapshots; 0: a budget decides, or there are none.
uint32_t snapshot_every(const TrainJob& job);

// `resumed_step`: that of the checkpoint from which the job goes on.
Schedule schedule_of(const TrainJob& job, uint64_t steps_per_epoch, uint64_t resumed_step);

// Of a job with private data: in how many rounds after `step` its owner takes part, if nothing is done twice. Counts no
// further than `most` + 1, and takes a run of more than a hundred million steps for one with more than that.
uint64_t rounds_to_come(const TrainJob& job, uint64_t step, uint64_t most);

}  // namespace modelet::agent
