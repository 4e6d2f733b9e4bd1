// Output modelets made of the neurons of others, for models that get other labels (node_agent/train/labels/): weights,
// state of the optimiser, counts of labels and the direct path go with each neuron.
#pragma once

#include <cstddef>
#include <span>

#include "shard/modelet/modelet.h"

namespace modelet::shard {

// A neuron of another output modelet, whose inputs and kinds of arrays are the same.
struct NeuronAt {
  Modelet* modelet = nullptr;
  size_t row = 0;
};

// from [neurons of `to`]. `to` must be as it was made. Scales of the direct path and the mean query are the same in all modelets
// of a layer: they are those of the first one that has them. Hash tables are built anew, low-rank projections in the next step.
void take_neurons(Modelet& to, std::span<const NeuronAt> from);

}  // namespace modelet::shard
