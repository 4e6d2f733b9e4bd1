// Checks whether a run may be resumed: a run must continue as it was begun.
//
// The check compares settings that the files of a checkpoint do not show by themselves. For example, the
// order of samples follows from the seed, a step number means nothing without the batch size, and different
// optimisers keep state under the same names. Everything else may differ (epochs, learning rate, sizes of
// active sets, threads, exchange, placement). Only reads its arguments; any thread.
#pragma once

#include <string>

#include "node_agent/train/job/train_job.h"
#include "shard/data/store/dataset.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::agent {

// The member of a checkpoint's `extra` with the fingerprint of the run's test data (Dataset::fingerprint()).
// Whoever uses that data by the path in the checkpoint compares: the path may be a stranger's.
inline constexpr const char* kTestFingerprint = "test_fingerprint";
std::string fingerprint_text(const shard::Dataset& data);

// Throws UsageError unless `job` continues with the same model, data, order of samples and optimiser. The
// text names the folder of `checkpoint` and the first setting that differs.
void require_same_run(const shard::Checkpoint& checkpoint, const TrainJob& job);

}  // namespace modelet::agent
