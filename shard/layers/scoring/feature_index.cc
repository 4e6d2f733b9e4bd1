#include "shard/layers/scoring/feature_index.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "shard/data/pairs/per_feature.h"

namespace modelet::shard {
namespace {

// Calls use(neuron of the layer, feature, value) for each pair.
template <class Use>
void for_each_pair(const Scoring& scoring, const Use& use) {
  std::vector<float> values;
  for (size_t m = 0; m < scoring.modelets().size(); ++m) {
    const Modelet& modelet = *scoring.modelets()[m];
    if (modelet.direct() == nullptr) continue;
    const Pairs& pairs = modelet.direct()->pairs;
    for (size_t row = 0; row < pairs.neurons(); ++row) {
      const std::span<const uint32_t> features = pairs.features(row);
      values.resize(features.size());
      scoring.pair_values({m, row}, values);
      for (size_t i = 0; i < features.size(); ++i)
        use(static_cast<uint32_t>(modelet.spec().begin + row), features[i], values[i]);
    }
  }
}

// At least one feature has a row.
FeatureRows rows_of(const Scoring& scoring) {
  const size_t features = std::max<size_t>(1, scoring.needs().features);
  PerFeature<uint8_t> seen(features);
  std::vector<uint32_t> ids = {0};
  seen[0] = 1;
  for (const Modelet* modelet : scoring.modelets()) {
    if (modelet->direct() == nullptr) continue;
    for (const uint32_t feature : modelet->direct()->pairs.features())
      if (!std::exchange(seen[feature], uint8_t{1})) ids.push_back(feature);
  }
  std::ranges::sort(ids);
  return {features, ids};
}

}  // namespace

FeatureIndex::FeatureIndex(const Scoring& scoring) : scoring_(scoring), rows_(rows_of(scoring)) {
  offsets_.resize(rows_.count() + 1);
  for_each_pair(scoring, [&](uint32_t, uint32_t feature, float) { ++offsets_[rows_.row(feature) + 1]; });
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  entries_.resize(offsets_.back());
  std::vector<uint64_t> next(offsets_.begin(), offsets_.end() - 1);
  for_each_pair(scoring, [&](uint32_t neuron, uint32_t feature, float value) {
    entries_[next[rows_.row(feature)]++] = {neuron, value};
  });
}

void FeatureIndex::add_to(const Query& query, float* logits) const {
  const auto& [features, values, labels] = query.sample;
  double squares = 0;
  for (const float value : values) squares += double{value} * value;
  const float inverse = inverse_length(squares);
  for (size_t f = 0; f < features.size(); ++f) {
    const float of_unit = values[f] * inverse;
    const uint32_t row = rows_.row(features[f]);
    if (row == FeatureRows::kNone) continue;
    for (uint64_t i = offsets_[row]; i < offsets_[row + 1]; ++i)
      logits[entries_[i].neuron] += of_unit * entries_[i].value;
  }
  for (const auto& term : scoring_.terms().subspan(1)) term->add_logits(query, logits);
}

size_t FeatureIndex::memory_bytes() const {
  return rows_.memory_bytes() + offsets_.size() * sizeof(uint64_t) + entries_.size() * sizeof(Entry);
}

}  // namespace modelet::shard
