// Numbers of 8 or 4 bits with a step per row: what int.cc and topk.cc share, except the vector code
// (int-inl.h). Internal to comm/.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/array/bf16.h"
#include "base/array/matrix.h"
#include "base/error.h"

namespace modelet::comm {

enum Layout : uint8_t { kDense = 0, kZerosLeftOut = 1 };

template <int kBits>
struct Numbers {
  static constexpr int kSigned = (1 << (kBits - 1)) - 1, kUnsigned = (1 << kBits) - 1;  // largest ones
  static constexpr int largest(bool negative) { return negative ? kSigned : kUnsigned; }
  // The range that a decoder accepts: two's complement has one more number below zero, which no encoder
  // writes.
  static constexpr int reach(bool negative) { return negative ? kSigned + 1 : kUnsigned; }
  static constexpr size_t bytes(size_t count) { return (count * kBits + 7) / 8; }
};

constexpr size_t bitmap_bytes(size_t cols) { return (cols + 7) / 8; }

// The step of a row; its sign bit says that the row has no negative value.
struct RowStep {
  Bf16 stored;
  float size() const { return std::abs(to_float(stored)); }
  bool negative() const { return (stored.bits & 0x8000) == 0; }
};

// Whether all numbers that a decoder accepts stand for finite values.
template <int kBits>
bool is_safe(RowStep step) {
  return std::isfinite(step.size() * static_cast<float>(Numbers<kBits>::reach(step.negative())));
}

inline RowStep load_step(const std::byte* steps, size_t row) {
  RowStep step;
  std::memcpy(&step, steps + row * sizeof(step), sizeof(step));
  return step;
}

// Found out in one pass over all rows.
struct Sizes {
  size_t dense = 0, sparse = 0;  // bytes of the rows in either layout
  size_t bad_row = ~size_t{0};   // one that holds a value that is not finite
};

constexpr float kFixed = 65536;  // fixed-point one, for 16 random bits
constexpr int kOffset = 128;     // makes fixed-point values positive
constexpr size_t kChunk = 64;    // numbers made, or read, at a time: as many as bits in a word

inline uint64_t load_bits(const std::byte* in, size_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, in, bytes);
  return word;
}

// The largest magnitude of the row divided by the largest number, rounded up so that this number is enough,
// but not so far that a decoder could produce an infinity; values next to the limit of floats are therefore
// cut off. 0 for a row below 3e-32, whose reciprocal would overflow.
template <int kBits>
RowStep step_of(float largest, bool negative) {
  const auto most = static_cast<float>(Numbers<kBits>::largest(negative));
  Bf16 step{static_cast<uint16_t>((std::bit_cast<uint32_t>(largest / most) + 0xffff) >> 16)};
  if (!std::isfinite(kFixed * kOffset / to_float(step))) return {};
  if (!negative) step.bits |= 0x8000;
  while (!is_safe<kBits>({step})) --step.bits;
  return {step};
}

// Writes the steps of all rows of a codec of 8 bits.
Sizes scan_int8(ConstMatrix values, std::byte* steps);

// Reads steps and rows of a codec of 8 bits that leaves zeros out; throws FormatError.
void decode_int8_kept(std::string_view name, std::span<const std::byte> steps_and_rows, Matrix values);

// Throws: a value to be encoded is not finite.
Error diverged(std::string_view name, size_t row, ConstMatrix values);

}  // namespace modelet::comm
