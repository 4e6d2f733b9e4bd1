// PairLanes: sparse products of a batch with the pairs of up to 16 labels at a time, a label in each lane of a
// vector. The labels' values are laid out by the features of the batch, [features, 16]; from there on both
// products are sums of such rows, weighted by the samples' values (kernels::weighted_row_sums):
//
//   out [label, sample]      = sum over the sample's features of x_f * value of (f, label)
//   gradient of (f, label)   = sum over the samples with f of x_f * gradient [label, sample]
//
// The cost follows from the pairs of these labels and the features of the batch, not from the number of labels.
// Owns scratch memory; for one thread at a time.
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

  // Makes room for batches like this one: afterwards nothing allocates.
  void reserve(const BatchFeatures& batch);

  // Lays out the values of at most kLanes labels and sums them up. `batch` and `labels` stay as they are until
  // clear().
  void multiply(const BatchFeatures& batch, std::span<const LabelPairs> labels);
  // Of the last multiply(): one sum; out [padded samples] += factor * sums of a label * sample_factors (null:
  // 1); and the squares of a sample's values, over its features that are among the label's.
  float sum(size_t label, size_t sample) const { return sums_[sample * kLanes + label]; }
  void add_sums(size_t label, float factor, const float* sample_factors, float* out) const;
  float squares_among(size_t label, size_t sample) const;
  // Has to follow each multiply().
  void clear();

  // gradients [count, stride >= samples] by the sums of `count` <= kLanes labels: afterwards gradient() is that
  // of a pair, by its feature.
  void collect(const BatchFeatures& batch, const float* gradients, size_t count, size_t stride);
  float gradient(size_t label, uint32_t feature) const {
    return values_[batch_->place(feature) * kLanes + label];
  }
  // Has to follow each collect().
  void clear_gradients();

 private:
  const BatchFeatures* batch_ = nullptr;
  std::span<const LabelPairs> labels_;
  size_t pairs_ = 0;             // of labels_
  AlignedVector<float> values_;  // [1 + features of the batch, kLanes], zero between calls
  AlignedVector<float> sums_;    // [samples, kLanes]
};

}  // namespace modelet::shard
