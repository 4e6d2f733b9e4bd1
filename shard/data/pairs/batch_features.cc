#include "shard/data/pairs/batch_features.h"

#include <numeric>

#include "base/array/padding.h"
#include "shard/data/batch/dropout.h"
#include "shard/data/read/sample.h"

namespace modelet::shard {

void BatchFeatures::assign(const Batch& batch, size_t features, float dropout, bool by_feature) {
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
  if (by_feature && batch.unique_features.empty()) sort_by_feature();
  inverse_lengths_.assign(padded(batch.size()), 0.0f);
  for (size_t s = 0; s < batch.size(); ++s) {
    double squares = 0;
    for (uint64_t i = batch.offsets[s]; i < batch.offsets[s + 1]; ++i)
      squares += double{batch.values[i]} * batch.values[i];
    inverse_lengths_[s] = inverse_length(squares * value_scale_);
  }
}

void BatchFeatures::sort_by_feature() {
  place_offsets_.assign(count() + 1, 0);
  for (const uint32_t place : entry_places_) ++place_offsets_[place];
  std::partial_sum(place_offsets_.begin(), place_offsets_.end(), place_offsets_.begin());
  std::vector<uint64_t> next(place_offsets_.begin(), place_offsets_.end() - 1);
  samples_.resize(entry_places_.size());
  values_.resize(entry_places_.size());
  for (size_t s = 0; s < batch_->size(); ++s)
    for (uint64_t i = batch_->offsets[s]; i < batch_->offsets[s + 1]; ++i) {
      const uint64_t to = next[entry_places_[i] - 1]++;
      samples_[to] = static_cast<uint32_t>(s);
      values_[to] = batch_->values[i];
    }
}

BatchFeatures::Occurrences BatchFeatures::at(uint32_t feature) const {
  const uint32_t place = feature < places_.size() ? places_[feature] : 0;
  if (place == 0) return {};
  const auto range = [&](const auto& offsets, const auto& samples, const auto& values) -> Occurrences {
    const uint64_t begin = offsets[place - 1], count = offsets[place] - begin;
    return {std::span(samples).subspan(begin, count), std::span(values).subspan(begin, count)};
  };
  return batch_->unique_features.empty()
             ? range(place_offsets_, samples_, values_)
             : range(batch_->feature_offsets, batch_->feature_samples, batch_->feature_values);
}

}  // namespace modelet::shard
