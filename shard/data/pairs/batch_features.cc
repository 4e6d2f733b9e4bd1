#include "shard/data/pairs/batch_features.h"

#include "base/array/padding.h"
#include "shard/data/batch/dropout.h"
#include "shard/data/read/sample.h"

namespace modelet::shard {

void BatchFeatures::assign(const Batch& batch, size_t features, float dropout) {
  batch_ = &batch;
  value_scale_ = 1 / dropout_scale(dropout);
  for (const uint32_t feature : placed_) places_[feature] = 0;
  if (places_.size() < features) places_ = PerFeature<uint32_t>(features);
  placed_.clear();
  const auto give_place = [&](uint32_t feature) {
    if (places_[feature] != 0) return;
    placed_.push_back(feature);
    places_[feature] = static_cast<uint32_t>(placed_.size());
  };
  for (const uint32_t feature : batch.unique_features) give_place(feature);
  for (const uint32_t feature : batch.features) give_place(feature);
  entry_places_.clear();
  for (const uint32_t feature : batch.features) entry_places_.push_back(places_[feature]);
  inverse_lengths_.assign(padded(batch.size()), 0.0f);
  for (size_t s = 0; s < batch.size(); ++s) {
    double squares = 0;
    for (uint64_t i = batch.offsets[s]; i < batch.offsets[s + 1]; ++i)
      squares += double{batch.values[i]} * batch.values[i];
    inverse_lengths_[s] = inverse_length(squares * value_scale_);
  }
}

}  // namespace modelet::shard
