// LastItems: the features of the last items of a sequence, from [sessions]; the newest item is item 0:
//
//   item                        each of the last sessions.window items: the sum of sessions.decay ^ place
//   (place + 1) * items + item  the item at each of the last sessions.positions places
//
// The first ones have the numbers of the items' labels, as model.own_weight and model.exclude_own expect. One thread uses
// it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/encode/features/column_features.h"

namespace modelet::shard {

// Features in any order, of which equal ones become one with the sum of the values.
class FeatureBag {
 public:
  void add(uint32_t feature, float value) { bag_.push_back({feature, value}); }
  void move_to(FeatureList& features) {
    std::ranges::stable_sort(bag_, {}, &Weighted::feature);
    uint32_t last = kNoFeature;
    for (const auto& [feature, value] : bag_) {
      if (feature != last)
        features.add(feature, value);
      else
        features.values.back() += value;
      last = feature;
    }
    bag_.clear();
  }

 private:
  struct Weighted {
    uint32_t feature;
    float value;
  };
  std::vector<Weighted> bag_;
};

class LastItems {
 public:
  LastItems(const Experiment::Sessions& options, uint32_t items) : positions_(options.positions), items_(items) {
    float weight = 1;
    for (uint32_t place = 0; place < options.window; ++place, weight *= options.decay) weights_.push_back(weight);
  }
  static uint64_t features(const Experiment::Sessions& options, uint64_t items) {
    return (uint64_t{options.positions} + 1) * items;
  }

  // sequence: the newest item last.
  void append(std::span<const uint32_t> sequence, FeatureList& features) {
    for (size_t place = 0; place < std::min(weights_.size(), sequence.size()); ++place)
      bag_.add(sequence[sequence.size() - 1 - place], weights_[place]);
    bag_.move_to(features);
    for (uint32_t place = 0; place < std::min<size_t>(positions_, sequence.size()); ++place)
      features.add((place + 1) * items_ + sequence[sequence.size() - 1 - place]);
  }
  size_t most() const { return std::max<size_t>(weights_.size(), positions_); }  // items that count

 private:
  uint32_t positions_, items_;
  std::vector<float> weights_;  // of the bag's places
  FeatureBag bag_;
};

}  // namespace modelet::shard
