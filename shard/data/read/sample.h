// Sample: one row of a data set, as a view. It owns nothing; the function that returns it says how long it
// stays valid.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace modelet::shard {

// The sample's non-zero features (strictly ascending ids), their values [features], and its labels (strictly
// ascending ids).
struct Sample {
  std::span<const uint32_t> features;
  std::span<const float> values;
  std::span<const uint32_t> labels;
};

// The input of a sample may consist of several blocks. Each has a name and a range of ids of its own. The first
// block, which every data set has, is that of Sample::features. A sample's ids in another block are kept in
// their order, and an id may be there twice: they may be a history.
inline constexpr std::string_view kFirstBlock = "features";
struct BlockShape {
  std::string name;
  uint64_t features = 0;  // ids lie below it

  bool operator==(const BlockShape&) const = default;
};
struct BlockSample {  // the part of a sample in one block
  std::span<const uint32_t> features;
  std::span<const float> values;
};

// A shorter vector counts as zero: 1 / length, times the scale of a centroid, must be a finite float.
inline constexpr double kSmallestLength = 1e-36;

// Length of a vector and its inverse, from the sum of its squared values; both 0 below kSmallestLength.
inline float length_of(double squares) {
  const double length = std::sqrt(squares);
  return length >= kSmallestLength ? static_cast<float>(length) : 0.0f;
}
inline float inverse_length(double squares) {
  const double length = std::sqrt(squares);
  return length >= kSmallestLength ? static_cast<float>(1 / length) : 0.0f;
}

}  // namespace modelet::shard
