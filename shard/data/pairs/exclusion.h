// Exclusion of a sample's own items (model.exclude_own), for data whose features and labels are the same items,
// where a sample's features are never its labels. Hidden layers learn this badly, because they have to learn it
// for each item separately, and centroids know only which features labels have. So the logit of a label gets
// kOwnWeight * x_f, where f is the feature of the label's own number.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shard/data/pairs/batch_features.h"

namespace modelet::shard {

// So low that the label has no chance, however small the feature's value. In a row of length one, an item that
// was counted once beside one that was counted a million times has the value 1e-6.
inline constexpr float kOwnWeight = -1e12f;

// Calls use(sample, what is added to the logit of the label) for the samples that have the label's item, ascending.
template <class Use>
void for_each_excluded(const BatchFeatures& batch, uint32_t label, const Use& use) {
  const auto [samples, values] = batch.at(label);
  for (size_t i = 0; i < samples.size(); ++i) use(samples[i], kOwnWeight * values[i]);
}

}  // namespace modelet::shard
