// LabelSpread: the map between label ids and neurons of the output layer. Data sets often number labels by
// frequency; without the permutation the frequent ones would gather in one modelet, and so on one node. It
// belongs to the data and not to the run: prepared files hold labels in the order of neurons, so that those of a
// node lie side by side (docs/data_format.md). The network of a tower (base/experiment/towers.h) has neurons for
// some of the labels only. Immutable; any thread may read it.
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
  static constexpr uint32_t kNoNeuron = ~uint32_t{0};

  // Of all labels: a seeded shuffle (Fisher-Yates). Prepared files use kLabelSeed; models of earlier programs
  // used the seed of the run (DataShape::label_seed).
  explicit LabelSpread(size_t labels, uint64_t seed = kLabelSeed) : label_of_(labels), neuron_of_(labels) {
    std::iota(label_of_.begin(), label_of_.end(), 0u);
    Rng rng(seed, {kStreamLabelSpread});
    for (size_t i = labels; i > 1; --i)
      std::swap(label_of_[i - 1], label_of_[rng.below(static_cast<uint32_t>(i))]);
    find_neurons();
  }
  // Of some of `labels` labels, in the order of their neurons.
  LabelSpread(std::vector<uint32_t> label_of, size_t labels)
      : label_of_(std::move(label_of)), neuron_of_(labels, kNoNeuron) {
    find_neurons();
  }

  size_t neurons() const { return label_of_.size(); }
  size_t labels() const { return neuron_of_.size(); }                  // ids are below
  uint32_t neuron(uint32_t label) const { return neuron_of_[label]; }  // kNoNeuron: it has none
  uint32_t label(uint32_t neuron) const { return label_of_[neuron]; }

 private:
  void find_neurons() {
    for (size_t neuron = 0; neuron < label_of_.size(); ++neuron)
      neuron_of_[label_of_[neuron]] = static_cast<uint32_t>(neuron);
  }

  std::vector<uint32_t> label_of_, neuron_of_;
};

// That of a network which has all labels.
inline LabelSpread spread_of(const DataShape& shape) { return LabelSpread(shape.labels, shape.label_seed); }

}  // namespace modelet::shard
