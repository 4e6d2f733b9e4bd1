#include "shard/data/pairs/feature_index.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "shard/data/pairs/per_feature.h"

namespace modelet::shard {
namespace {

// Calls use(neuron of the layer, feature, unit, weight) for each pair.
template <class Use>
void for_each_pair(std::span<const PairsOfLayer> layer, const Use& use) {
  std::vector<float> units;
  for (const auto& [pairs, first, scales] : layer)
    for (size_t row = 0; row < pairs.neurons(); ++row) {
      const std::span<const uint32_t> features = pairs.features(row);
      const float* const weights = pairs.options().exclude_own ? pairs.weights(row).values : nullptr;
      units.resize(features.size());
      pairs.unit_values(row, scales, units.data());
      for (size_t i = 0; i < features.size(); ++i)
        use(static_cast<uint32_t>(first + row), features[i], units[i],
            weights != nullptr ? weights[i] : 0.0f);
    }
}

// At least one feature has a row.
FeatureRows rows_of(std::span<const PairsOfLayer> layer) {
  size_t features = 1;
  for (const PairsOfLayer& of_modelet : layer)
    features = std::max(features, of_modelet.pairs.feature_count());
  PerFeature<uint8_t> seen(features);
  std::vector<uint32_t> ids = {0};
  seen[0] = 1;
  for (const PairsOfLayer& of_modelet : layer)
    for (const uint32_t feature : of_modelet.pairs.features())
      if (!std::exchange(seen[feature], uint8_t{1})) ids.push_back(feature);
  std::ranges::sort(ids);
  return {features, ids};
}

}  // namespace

FeatureIndex::FeatureIndex(std::span<const PairsOfLayer> layer) : rows_(rows_of(layer)) {
  offsets_.resize(rows_.count() + 1);
  for_each_pair(layer, [&](uint32_t, uint32_t feature, float, float) { ++offsets_[rows_.row(feature) + 1]; });
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  entries_.resize(offsets_.back());
  std::vector<uint64_t> next(offsets_.begin(), offsets_.end() - 1);
  for_each_pair(layer, [&](uint32_t neuron, uint32_t feature, float unit, float weight) {
    entries_[next[rows_.row(feature)]++] = {neuron, unit, weight};
  });
}

void FeatureIndex::add_to(const Sample& sample, float* scores) const {
  double squares = 0;
  for (const float value : sample.values) squares += double{value} * value;
  const float scale = inverse_length(squares);
  for (size_t f = 0; f < sample.features.size(); ++f) {
    const float value = sample.values[f], of_unit = value * scale;
    const uint32_t row = rows_.row(sample.features[f]);
    if (row == FeatureRows::kNone) continue;
    for (uint64_t i = offsets_[row]; i < offsets_[row + 1]; ++i)
      scores[entries_[i].neuron] += of_unit * entries_[i].unit + value * entries_[i].weight;
  }
}

size_t FeatureIndex::memory_bytes() const {
  return rows_.memory_bytes() + offsets_.size() * sizeof(uint64_t) + entries_.size() * sizeof(Entry);
}

}  // namespace modelet::shard
