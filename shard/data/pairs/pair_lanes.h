// PairLanes: sparse products of a batch with the pairs of up to 16 labels at a time, a label in each lane of
// a vector. The values of the pairs are laid out as rows, one for each feature of the batch: [features, 16].
// Then the products are sums of rows, weighted by the samples' values (kernels::weighted_row_sums):
//
//   out [label, sample] = sum over the sample's features of x_f * value of (f, label)
//
// The cost depends on the pairs of these labels and on the features of the batch, not on the number of
// labels. Owns scratch memory; for one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/array/aligned.h"
#include "shard/data/pairs/batch_features.h"
#include "shard/data/pairs/pairs.h"

namespace modelet::shard {

class PairLanes {
 public:
  static constexpr size_t kLanes = 16;

  // Makes room for batches of this size. After that, nothing is allocated for them.
  void reserve(const BatchFeatures& batch);

  // Computes the sums of at most kLanes labels for all samples. `batch` and `labels` must not change before
  // clear().
  void multiply(const BatchFeatures& batch, std::span<const LabelPairs> labels);
  // Results of the last multiply(). sum(): one sum. add_sums(): out [padded samples] += factor * sums of a
  // label * sample_factors. squares_among(): sum of the squares of a sample's values, over those of
  // its features that the label has.
  float sum(size_t label, size_t sample) const { return sums_[sample * kLanes + label]; }
  void add_sums(size_t label, float factor, const float* sample_factors, float* out) const;
  float squares_among(size_t label, size_t sample) const;
  // Must follow each multiply().
  void clear();

 private:
  const BatchFeatures* batch_ = nullptr;
  std::span<const LabelPairs> labels_;
  size_t pairs_ = 0;             // of labels_
  AlignedVector<float> values_;  // [1 + features of the batch, kLanes], zero between calls
  AlignedVector<float> sums_;    // [samples, kLanes]
};

}  // namespace modelet::shard
