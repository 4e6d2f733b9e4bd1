// BatchFeatures: the features of a batch, numbered from 1, so that arrays over them are small. Products with
// pairs (pair_lanes.h) look up the feature of each pair here. Place 0 stands for all features that the batch
// lacks. If the batch is also gathered by feature, the order is that of Batch::unique_features.
//
// Keeps its memory. One thread fills it; then any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/array/aligned.h"
#include "shard/data/batch/batch.h"
#include "shard/data/pairs/per_feature.h"

namespace modelet::shard {

class BatchFeatures {
 public:
  // `features`: how many the data has. `batch` is kept by reference. `dropout`: rate at which its features
  // were left out.
  void assign(const Batch& batch, size_t features, float dropout = 0);

  const Batch& batch() const { return *batch_; }
  size_t count() const { return placed_.size(); }  // places 1 .. count
  uint32_t place(uint32_t feature) const { return places_[feature]; }
  // [entries] of the batch by sample.
  const uint32_t* entry_places() const { return entry_places_.data(); }

  // [padded samples] 1 / length of each sample, 0 in the padding and for samples without features. With
  // dropout, the length is estimated from the features that remain.
  const float* inverse_lengths() const { return inverse_lengths_.data(); }
  // The factor that turns the value of an entry into its value before dropout.
  float value_scale() const { return value_scale_; }

 private:
  const Batch* batch_ = nullptr;
  float value_scale_ = 1;
  PerFeature<uint32_t> places_;  // 0 except for those in placed_
  std::vector<uint32_t> placed_;
  std::vector<uint32_t> entry_places_;
  AlignedVector<float> inverse_lengths_;
};

}  // namespace modelet::shard
