// A sample's own items, for data whose features and labels are the same items with the same numbers: the logit of a
// label gets a fixed weight times x_f, where f is the feature of the label's own number. Hidden layers learn this badly,
// because they have to learn it for each item separately, and centroids know only which features labels have.
//
//   model.exclude_own   a sample's features are never its labels: kExcluded
//   model.own_weight    they often are, as in sessions, where people come back to what they have seen
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/experiment/experiment.h"
#include "shard/data/pairs/batch_features.h"

namespace modelet::shard {

// So low that the label has no chance, however small the feature's value. In a row of length one, an item that
// was counted once beside one that was counted a million times has the value 1e-6.
inline constexpr float kExcluded = -1e12f;

// The weight; 0: there is none.
inline float own_weight(const Experiment::Model& model) { return model.exclude_own ? kExcluded : model.own_weight; }

// Calls use(sample, value of the label's item in it) for the samples that have the label's item, ascending.
template <class Use>
void for_each_owner(const BatchFeatures& batch, uint32_t label, const Use& use) {
  const auto [samples, values] = batch.at(label);
  for (size_t i = 0; i < samples.size(); ++i) use(samples[i], values[i]);
}

}  // namespace modelet::shard
