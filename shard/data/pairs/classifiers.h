// Classifiers: linear classifiers of the labels of one output modelet, a weight for each of the modelet's pairs
// and a bias for each label. shard/layers/scoring/classifiers.h fits them. A plain value.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/array/aligned.h"
#include "shard/data/pairs/pairs.h"

namespace modelet::shard {

struct Classifiers {
  AlignedVector<float> weights;  // [pairs]
  std::vector<float> biases;     // [neurons]

  // Those that add nothing.
  static Classifiers none(const Pairs& pairs) {
    return {AlignedVector<float>(pairs.size()), std::vector<float>(pairs.neurons())};
  }
  // Whether they were ever fitted.
  bool fitted() const {
    return std::ranges::any_of(biases, [](float bias) { return bias != 0; });
  }
  // The same classifiers when the pairs change: pairs that are still there keep their weights, others have 0.
  Classifiers moved(const Pairs& from, const Pairs& to) const {
    Classifiers moved = none(to);
    moved.biases = biases;
    for (size_t row = 0; row < to.neurons(); ++row) {
      const std::span<const uint32_t> now = to.features(row), then = from.features(row);
      for (size_t i = 0; i < then.size(); ++i)
        if (const auto found = std::ranges::lower_bound(now, then[i]);
            found != now.end() && *found == then[i])
          moved.weights[to.offsets()[row] + static_cast<size_t>(found - now.begin())] =
              weights[from.offsets()[row] + i];
    }
    return moved;
  }
  size_t memory_bytes() const { return (weights.size() + biases.size()) * sizeof(float); }
};

}  // namespace modelet::shard
