// Decides which labels of the training data a rank has: those of the output neurons that it holds. Of
// samples that are held out for validation it has all labels, because their scores are compared with all
// labels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/experiment/partition.h"
#include "comm/collectives/group.h"
#include "node_agent/train/job/train_job.h"
#include "shard/data/store/dataset.h"

namespace modelet::agent {

// The output neurons of modelets that are given in the order of the partition, with neighbouring ranges
// joined; and those of the modelets that the job's rank holds.
std::vector<shard::NeuronRange> output_neurons(std::span<const ModeletSpec> modelets);
std::vector<shard::NeuronRange> output_neurons(const TrainJob& job);

// Adds to each rank's `data`, which has the labels of its own output neurons, the labels of `rows`
// (ascending) that the other ranks have. All ranks of the group must call it with the same rows, and
// together they must hold all neurons. Nobody may read the data meanwhile. Uses kLabelRounds rounds from
// tag.round upwards (rounds.h). Throws FormatError if another rank sends anything but labels of these rows.
void complete_labels(shard::Dataset& data, std::span<const uint32_t> rows, comm::Group& group, comm::Tag tag);

}  // namespace modelet::agent
