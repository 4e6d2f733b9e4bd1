// Divides labels into towers (base/experiment/towers.h), so that each tower's labels have about as many training
// samples as those of the others.
//
//   spread      labels by falling frequency go each to the tower with the fewest samples so far
//   clustered   labels whose samples are alike are together: recursive 2-means of the directions of their centroids,
//               each half with its share of the samples (Prabhu et al., "Parabel", WWW 2018, section 4)
//
// The same arguments give the same division, whatever the threads.
#pragma once

#include <cstdint>
#include <span>

#include "base/experiment/experiment.h"
#include "base/parallel/thread_pool.h"
#include "shard/data/store/dataset.h"
#include "shard/data/store/label_division.h"

namespace modelet::shard {

// By the samples `rows` (ascending) of `data`, which has all labels of these. UsageError if there are fewer labels
// than towers.
LabelDivision divide_labels(const Experiment& experiment, const Dataset& data, std::span<const uint32_t> rows,
                            ThreadPool& pool);

}  // namespace modelet::shard
