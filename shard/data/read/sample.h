// Sample: one row of a data set, as a view. It owns nothing; the function that returns it says how long it
// stays valid.
#pragma once

#include <cstdint>
#include <span>

namespace modelet::shard {

// The sample's non-zero features (strictly ascending ids), their values [features], and its labels (strictly
// ascending ids).
struct Sample {
  std::span<const uint32_t> features;
  std::span<const float> values;
  std::span<const uint32_t> labels;
};

}  // namespace modelet::shard
