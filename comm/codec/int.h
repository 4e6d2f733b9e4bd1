// Numbers and steps of the codecs int8 and int4 (int.cc): a row is stored as a step and one whole number of
// 8 or 4 bits for each value. A value is its number times the step. Internal to comm/.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/array/bf16.h"

namespace modelet::comm {

enum Layout : uint8_t { kDense = 0, kZerosLeftOut = 1 };

template <int kBits>
struct Numbers {
  static constexpr int kSigned = (1 << (kBits - 1)) - 1, kUnsigned = (1 << kBits) - 1;  // the largest numbers
  static constexpr int largest(bool negative) { return negative ? kSigned : kUnsigned; }
  // The largest magnitude that a decoder accepts. Two's complement has one more number below zero, which no
  // encoder writes.
  static constexpr int reach(bool negative) { return negative ? kSigned + 1 : kUnsigned; }
  static constexpr size_t bytes(size_t count) { return (count * kBits + 7) / 8; }
};

constexpr size_t bitmap_bytes(size_t cols) { return (cols + 7) / 8; }

// The step of a row. Its sign bit is set if the row has no negative value.
struct RowStep {
  Bf16 stored;
  float size() const { return std::abs(to_float(stored)); }
  bool negative() const { return (stored.bits & 0x8000) == 0; }
};

// Whether every number that a decoder accepts gives a finite value.
template <int kBits>
bool is_safe(RowStep step) {
  return std::isfinite(step.size() * static_cast<float>(Numbers<kBits>::reach(step.negative())));
}

inline RowStep load_step(const std::byte* steps, size_t row) {
  RowStep step;
  std::memcpy(&step, steps + row * sizeof(step), sizeof(step));
  return step;
}

// What one pass over all rows finds.
struct Sizes {
  size_t dense = 0, sparse = 0;  // bytes of all rows in each layout
  size_t bad_row = ~size_t{0};   // a row with a value that is not finite; ~0: none
};

constexpr float kFixed = 65536;  // 1 in fixed point, with 16 bits below the point for the random bits
constexpr int kOffset = 128;     // makes fixed-point values positive
constexpr size_t kChunk = 64;    // numbers that are made or read at a time: one for each bit of a word

inline uint64_t load_bits(const std::byte* in, size_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, in, bytes);
  return word;
}

// The step of a row: its largest magnitude divided by the largest number. It is rounded up, so that the
// largest number reaches that magnitude, but only so far that no decoder can get an infinity. Values close
// to the limit of floats are therefore clipped. The step is 0 for a row below 3e-32, because its reciprocal
// would overflow.
template <int kBits>
RowStep step_of(float largest, bool negative) {
  const auto most = static_cast<float>(Numbers<kBits>::largest(negative));
  Bf16 step{static_cast<uint16_t>((std::bit_cast<uint32_t>(largest / most) + 0xffff) >> 16)};
  if (!std::isfinite(kFixed * kOffset / to_float(step))) return {};
  if (!negative) step.bits |= 0x8000;
  while (!is_safe<kBits>({step})) --step.bits;
  return {step};
}

}  // namespace modelet::comm
