// FeatureIndex: the terms of the scores of a layer that bypass its activations, for single queries. It has the pairs of
// the labels ordered by feature, with the sums of what all terms say about them (Scoring::pair_values()), and looks
// only at the pairs of the sample's features. The pairs are a copy; it also refers to the scoring. Immutable; any
// thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/array/aligned.h"
#include "shard/data/store/feature_rows.h"
#include "shard/layers/scoring/scoring.h"

namespace modelet::shard {

class FeatureIndex {
 public:
  explicit FeatureIndex(const Scoring& scoring);

  // logits [neurons of the layer] += what all terms but the network say about the sample.
  void add_to(const Query& query, float* logits) const;

  size_t memory_bytes() const;

 private:
  struct Entry {
    uint32_t neuron;
    float value;  // factor of x_f / |x|
  };
  const Scoring& scoring_;
  FeatureRows rows_;               // features that have pairs
  std::vector<uint64_t> offsets_;  // [rows + 1]
  AlignedVector<Entry> entries_;
};

}  // namespace modelet::shard
