// Which labels of the training data a rank has: those of the output neurons that it holds, and of samples
// that are held out for validation all of them, since whoever scores those compares with all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/cut.h"
#include "comm/group.h"
#include "node_agent/trainer.h"
#include "shard/data/dataset.h"

namespace modelet::agent {

// The output neurons of some modelets (in the order of the cut), neighbours joined; of those that the rank of
// a job holds.
std::vector<shard::NeuronRange> output_neurons(std::span<const ModeletSpec> modelets);
std::vector<shard::NeuronRange> output_neurons(const TrainJob& job);

// Gives `data` of each rank, which has the labels of its own output neurons, the labels of `rows` that the
// others have. All ranks of the group, which hold all neurons together, call it with the same rows
// (ascending), and nobody reads the data meanwhile. Uses rounds from tag.round upwards, and returns the tag
// after them. FormatError if others send what are no labels of these rows.
comm::Tag complete_labels(shard::Dataset& data, std::span<const uint32_t> rows, comm::Group& group,
                          comm::Tag tag);

}  // namespace modelet::agent
