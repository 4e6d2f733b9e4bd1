// Whether a run may be resumed: it continues as it was begun, or not at all.
//
// This compares what the files of a checkpoint do not show by themselves: the seed stands for the order of
// samples, the step number for a batch size, and optimisers keep state under the same names. Everything else
// may differ (epochs, learning rate, sizes of active sets, threads, exchange, placement). Reads its arguments
// only; any thread.
#pragma once

#include "node_agent/train/job/train_job.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::agent {

// Throws UsageError, which names the folder of `checkpoint` and the first setting that differs, unless `job`
// continues with the same model, data, order of samples and optimiser.
void require_same_run(const shard::Checkpoint& checkpoint, const TrainJob& job);

}  // namespace modelet::agent
