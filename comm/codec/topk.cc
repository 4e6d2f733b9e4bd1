// Codec "topk": of every 64 values of a row it sends the 8 with the largest magnitudes, as the numbers of
// int8. The receiver takes the others as zeros (Aji and Heafield, EMNLP 2017; Lin et al., Deep Gradient
// Compression, ICLR 2018).
//
// The choice is made for each chunk of 64 values, as the code of int8 makes them, so it needs neither a
// second pass nor memory. A bitmap says which values travel. For one value in eight, a bitmap is never
// longer than a list of one-byte positions. Layout: docs/wire_format.md.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/array/simd_targets.h"
#include "comm/codec/codecs.h"
#include "comm/codec/int.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/codec/topk.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "comm/codec/int-inl.h"
// clang-format on

#ifndef MODELET_COMM_CODEC_TOPK_ONCE  // compiled once, not for each instruction set
#define MODELET_COMM_CODEC_TOPK_ONCE
namespace modelet::comm {

// The most of `count` values that travel: one in eight.
constexpr size_t kept_of(size_t count) { return (count + 7) / 8; }

}  // namespace modelet::comm
#endif

HWY_BEFORE_NAMESPACE();
namespace modelet::comm::HWY_NAMESPACE {

// A mask of the `most` numbers of a chunk with the largest magnitudes. Zeros are never in it; of equal
// numbers the first ones are.
HWY_INLINE uint64_t largest(const std::array<uint8_t, kChunk>& numbers, bool negative, size_t most) {
  const hn::CappedTag<uint8_t, kChunk> u8;
  const hn::RebindToSigned<decltype(u8)> i8;
  std::array<uint8_t, kChunk> magnitudes;
  for (size_t i = 0; i < kChunk; i += hn::Lanes(u8)) {
    const auto number = hn::LoadU(u8, numbers.data() + i);
    hn::StoreU(negative ? hn::BitCast(u8, hn::Abs(hn::BitCast(i8, number))) : number, u8,
               magnitudes.data() + i);
  }
  // Finds the most-th largest magnitude two bits at a time, by comparisons that do not wait for each other.
  unsigned limit = 0;
  for (int shift = 6; shift >= 0; shift -= 2) {
    unsigned digit = 0;
    for (unsigned tried = 1; tried < 4; ++tried) {
      const auto below = hn::Set(u8, static_cast<uint8_t>(limit + (tried << shift) - 1));
      size_t count = 0;
      for (size_t i = 0; i < kChunk; i += hn::Lanes(u8))
        count += hn::CountTrue(u8, hn::Gt(hn::LoadU(u8, magnitudes.data() + i), below));
      digit += count >= most ? 1 : 0;
    }
    limit += digit << shift;
  }
  const auto limits = hn::Set(u8, static_cast<uint8_t>(limit));
  uint64_t bits = bits_where(magnitudes.data(), [=](auto x) HWY_ATTR { return hn::Gt(x, limits); });
  if (limit == 0) return bits;
  uint64_t equal = bits_where(magnitudes.data(), [=](auto x) HWY_ATTR { return hn::Eq(x, limits); });
  for (size_t left = most - static_cast<size_t>(std::popcount(bits)); left > 0; --left, equal &= equal - 1)
    bits |= equal & -equal;
  return bits;
}

template <bool kStochastic>
std::byte* write_row(const float* row, size_t cols, RowStep step, uint32_t key, std::byte* bitmap) {
  std::byte* out = bitmap + bitmap_bytes(cols);
  std::array<uint8_t, kChunk> numbers;
  for (size_t c = 0; c < cols; c += kChunk) {
    const size_t count = make_chunk<8, kStochastic>(row, cols, c, step, key, numbers);
    const uint64_t bits = largest(numbers, step.negative(), kept_of(count));
    std::memcpy(bitmap + c / 8, &bits, bitmap_bytes(count));
    for (uint64_t left = bits; left != 0; left &= left - 1)
      *out++ = std::byte{numbers[static_cast<size_t>(std::countr_zero(left))]};
  }
  return out;
}

std::byte* write_rows(ConstMatrix values, Rounding rounding, const std::byte* steps, std::byte* out) {
  for (size_t r = 0; r < values.rows; ++r) {
    const RowStep step = load_step(steps, r);
    if (step.size() == 0) continue;
    const auto key = static_cast<uint32_t>(rounding.row_seed(r));
    out = rounding.to_nearest() ? write_row<false>(values.row(r), values.cols, step, key, out)
                                : write_row<true>(values.row(r), values.cols, step, key, out);
  }
  return out;
}

}  // namespace modelet::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace modelet::comm {
namespace {

HWY_EXPORT(write_rows);

class TopKCodec final : public Codec {
 public:
  CodecKind kind() const override { return CodecKind::kTopk; }
  uint8_t id() const override { return 5; }
  size_t max_bytes(size_t rows, size_t cols) const override {
    return rows * (sizeof(RowStep) + bitmap_bytes(cols) + kept_of(cols));
  }

  size_t encode(ConstMatrix values, Rounding rounding, std::span<std::byte> out) const override {
    MODELET_CHECK(out.size() >= max_bytes(values.rows, values.cols));
    const Sizes sizes = scan_int8(values, out.data());
    if (sizes.bad_row < values.rows) throw diverged(name(), sizes.bad_row, values);
    std::byte* const rows = out.data() + values.rows * sizeof(RowStep);
    const std::byte* const end = HWY_DYNAMIC_DISPATCH(write_rows)(values, rounding, out.data(), rows);
    return static_cast<size_t>(end - out.data());
  }

  void decode(std::span<const std::byte> bytes, Matrix values) const override {
    decode_int8_kept(name(), bytes, values);
  }
};

}  // namespace

const Codec& codec_topk() {
  static const TopKCodec codec;
  return codec;
}

}  // namespace modelet::comm
#endif  // HWY_ONCE
