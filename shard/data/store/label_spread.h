// LabelSpread: the permutation between label ids and neurons of the output layer. Data sets often number
// labels by frequency; without the permutation the frequent ones would gather in one modelet, and so on one
// node. It belongs to the data and not to the run: prepared files hold labels in the order of neurons, so
// that those of a node lie side by side (docs/data_format.md). Immutable; any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/experiment/experiment.h"
#include "base/rng.h"

namespace modelet::shard {

class LabelSpread {
 public:
  // A seeded shuffle (Fisher-Yates). Prepared files use kLabelSeed; models of earlier programs used the seed
  // of the run (DataShape::label_seed).
  explicit LabelSpread(size_t labels, uint64_t seed = kLabelSeed) : label_of_(labels), neuron_of_(labels) {
    std::iota(label_of_.begin(), label_of_.end(), 0u);
    Rng rng(seed, {kStreamLabelSpread});
    for (size_t i = labels; i > 1; --i)
      std::swap(label_of_[i - 1], label_of_[rng.below(static_cast<uint32_t>(i))]);
    for (size_t neuron = 0; neuron < labels; ++neuron)
      neuron_of_[label_of_[neuron]] = static_cast<uint32_t>(neuron);
  }

  size_t labels() const { return label_of_.size(); }
  uint32_t neuron(uint32_t label) const { return neuron_of_[label]; }
  uint32_t label(uint32_t neuron) const { return label_of_[neuron]; }

 private:
  std::vector<uint32_t> label_of_, neuron_of_;
};

}  // namespace modelet::shard
