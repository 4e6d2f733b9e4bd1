// Bf16: the upper half of an fp32 number, with its full range and 8 of its 24 bits of precision. Only a
// storage format: arithmetic is done in fp32.
#pragma once

#include <bit>
#include <cstdint>

namespace modelet {

struct Bf16 {
  uint16_t bits = 0;
};

constexpr float to_float(Bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

// Rounds to the nearest value, and halfway cases to the even one. NaN stays NaN.
constexpr Bf16 nearest_bf16(float value) {
  constexpr uint32_t kInfinity = 0x7f800000, kQuiet = 0x0040;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = (bits >> 16) | kQuiet;  // rounding could carry a NaN into an infinity
  return {static_cast<uint16_t>((bits & 0x7fffffff) > kInfinity ? nan : rounded)};
}

// Stochastic rounding: rounds away from zero with the probability that makes the mean right, if `noise` is
// uniform in [0, 2^16). Changes that are too small for rounding to the nearest are thus kept on average.
constexpr Bf16 stochastic_bf16(float value, uint32_t noise) {
  return {static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + noise) >> 16)};
}

}  // namespace modelet
