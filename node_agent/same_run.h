// Whether a run may be resumed: it goes on as what it was begun as, or not at all.
//
// What the files of a checkpoint do not show by themselves is compared here: the seed stands for the order of
// samples, the step number for a batch size, and optimisers keep state under the same names. All else may
// differ (epochs, learning rate, sizes of active sets, threads, exchange, placement). Reads its arguments
// only; any thread.
#pragma once

#include "node_agent/trainer.h"
#include "shard/checkpoint.h"

namespace modelet::agent {

// Throws UsageError, which names the folder of `checkpoint` and the first setting that differs, unless `job`
// goes on with the same model, data, order of samples and optimiser.
void require_same_run(const shard::Checkpoint& checkpoint, const TrainJob& job);

}  // namespace modelet::agent
