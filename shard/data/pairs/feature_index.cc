#include "shard/data/pairs/feature_index.h"

#include <algorithm>
#include <numeric>

namespace modelet::shard {
namespace {

// Calls use(neuron of the layer, feature, unit, weight) for each pair.
template <class Use>
void for_each_pair(std::span<const PairsOfLayer> layer, const Use& use) {
  std::vector<float> units;
  for (const auto& [pairs, first, scales] : layer)
    for (size_t row = 0; row < pairs.neurons(); ++row) {
      const std::span<const uint32_t> features = pairs.features(row);
      const float* const weights = pairs.options().weights ? pairs.weights(row).values : nullptr;
      units.resize(features.size());
      pairs.unit_values(row, scales, units.data());
      for (size_t i = 0; i < features.size(); ++i)
        use(static_cast<uint32_t>(first + row), features[i], units[i],
            weights != nullptr ? weights[i] : 0.0f);
    }
}

}  // namespace

FeatureIndex::FeatureIndex(std::span<const PairsOfLayer> layer) {
  size_t features = 0;
  for (const PairsOfLayer& of_modelet : layer)
    features = std::max(features, of_modelet.pairs.feature_count());
  offsets_.resize(features + 1);
  for_each_pair(layer, [&](uint32_t, uint32_t feature, float, float) { ++offsets_[feature + 1]; });
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  entries_.resize(offsets_.back());
  std::vector<uint64_t> next(offsets_.begin(), offsets_.end() - 1);
  for_each_pair(layer, [&](uint32_t neuron, uint32_t feature, float unit, float weight) {
    entries_[next[feature]++] = {neuron, unit, weight};
  });
}

void FeatureIndex::add_to(const Sample& sample, float* scores) const {
  double squares = 0;
  for (const float value : sample.values) squares += double{value} * value;
  const float scale = inverse_length(squares);
  for (size_t f = 0; f < sample.features.size(); ++f) {
    const float value = sample.values[f], of_unit = value * scale;
    const uint64_t end = offsets_[sample.features[f] + 1];
    for (uint64_t i = offsets_[sample.features[f]]; i < end; ++i)
      scores[entries_[i].neuron] += of_unit * entries_[i].unit + value * entries_[i].weight;
  }
}

size_t FeatureIndex::memory_bytes() const {
  return offsets_.size() * sizeof(uint64_t) + entries_.size() * sizeof(Entry);
}

}  // namespace modelet::shard
