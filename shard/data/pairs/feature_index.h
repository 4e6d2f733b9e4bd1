// FeatureIndex: the pairs of a whole output layer, ordered by feature, for single queries. It computes what
// the direct path adds to the logits of one sample, and looks only at the pairs of the sample's features. It
// holds a copy of the pairs, multiplied by the scales. Immutable; any thread may read it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/array/aligned.h"
#include "shard/data/pairs/pairs.h"
#include "shard/data/read/sample.h"
#include "shard/data/store/feature_rows.h"

namespace modelet::shard {

// Pairs of neurons [first, first + pairs.neurons()) of the layer, and the scales of their frequency classes.
struct PairsOfLayer {
  const Pairs& pairs;
  size_t first;
  std::array<float, kFrequencyClasses> scales;
};

class FeatureIndex {
 public:
  explicit FeatureIndex(std::span<const PairsOfLayer> layer);

  // scores [neurons of the layer] += what the direct path adds for the sample.
  void add_to(const Sample& sample, float* scores) const;

  size_t memory_bytes() const;

 private:
  struct Entry {
    uint32_t neuron;
    float unit, weight;  // factors of x_f / |x| (Pairs::unit_values), and of x_f
  };
  FeatureRows rows_;               // features that have pairs
  std::vector<uint64_t> offsets_;  // [rows + 1]
  AlignedVector<Entry> entries_;
};

}  // namespace modelet::shard
