// BatchFeatures: the features of a batch, numbered from 1, so that arrays over them are small. Products with
// pairs (pair_lanes.h) look up the feature of each pair here. Place 0 stands for all features that the batch
// lacks. If the batch is also gathered by feature, the order is that of Batch::unique_features.
//
// Keeps its memory. One thread fills it; then any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/array/aligned.h"
#include "shard/data/batch/batch.h"
#include "shard/data/pairs/per_feature.h"

namespace modelet::shard {

class BatchFeatures {
 public:
  // `features`: how many the data has. `batch` is kept by reference. `dropout`: rate at which its features
  // were left out. `by_feature`: at() is used.
  void assign(const Batch& batch, size_t features, float dropout = 0, bool by_feature = false);

  const Batch& batch() const { return *batch_; }
  size_t count() const { return placed_.size(); }  // places 1 .. count
  uint32_t place(uint32_t feature) const { return places_[feature]; }
  // [entries] of the batch by sample.
  const uint32_t* entry_places() const { return entry_places_.data(); }

  // The samples that have a feature, ascending, and its values in them.
  struct Occurrences {
    std::span<const uint32_t> samples;
    std::span<const float> values;
  };
  Occurrences at(uint32_t feature) const;

  // [padded samples] 1 / length of each sample, 0 in the padding and for samples without features. With
  // dropout, the length is estimated from the features that remain.
  const float* inverse_lengths() const { return inverse_lengths_.data(); }
  // The factor that turns the value of an entry into its value before dropout.
  float value_scale() const { return value_scale_; }

 private:
  void sort_by_feature();

  const Batch* batch_ = nullptr;
  float value_scale_ = 1;
  PerFeature<uint32_t> places_;  // 0 except for those in placed_
  std::vector<uint32_t> placed_;
  std::vector<uint32_t> entry_places_;
  // Of a batch that is not gathered by feature: entries in the order of their places.
  std::vector<uint64_t> place_offsets_;  // [count + 1]
  std::vector<uint32_t> samples_;
  std::vector<float> values_;
  AlignedVector<float> inverse_lengths_;
};

}  // namespace modelet::shard
