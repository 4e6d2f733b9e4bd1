// Which labels of the training data a rank has: those of the output neurons that it holds and, for samples
// that are held out for validation, all of them, since scoring those compares with all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/experiment/partition.h"
#include "comm/collectives/group.h"
#include "node_agent/train/job/train_job.h"
#include "shard/data/store/dataset.h"

namespace modelet::agent {

// The output neurons of some modelets (in the order of the partition), neighbours joined; and of those that
// the rank of a job holds.
std::vector<shard::NeuronRange> output_neurons(std::span<const ModeletSpec> modelets);
std::vector<shard::NeuronRange> output_neurons(const TrainJob& job);

// Gives `data` of each rank, which has the labels of its own output neurons, the labels of `rows` that the
// others have. All ranks of the group, which hold all neurons together, call it with the same rows
// (ascending), and nobody reads the data meanwhile. Uses rounds from tag.round upwards, and returns the tag
// after them. FormatError if others send anything but labels of these rows.
void complete_labels(shard::Dataset& data, std::span<const uint32_t> rows, comm::Group& group, comm::Tag tag);

}  // namespace modelet::agent
