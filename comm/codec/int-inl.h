// Turns values into numbers, in vector code. It is compiled once for each instruction set, like int.cc, which
// includes it.
#if defined(MODELET_COMM_CODEC_INT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MODELET_COMM_CODEC_INT_INL_H_
#undef MODELET_COMM_CODEC_INT_INL_H_
#else
#define MODELET_COMM_CODEC_INT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>

#include "comm/codec/int.h"

HWY_BEFORE_NAMESPACE();
namespace modelet::comm::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, because the last values of a row are copied into an array of 16.
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
using Bytes = hn::Rebind<uint8_t, Floats>;

// Writes the numbers of `count` values: floor(value / step + noise). The noise is drawn from [0, 1), or is
// a half to round to the nearest. `count` is rounded up to whole vectors. `key` is the row's place in the
// random stream; each value takes 16 random bits. The mixer is "lowbias32" (Wellons, 2018). The number of
// the largest value may come out slightly too large, so all numbers are limited to [low, high].
template <bool kStochastic>
HWY_INLINE void make_numbers(const float* in, float scale, int low, int high, uint32_t key, size_t count,
                             uint8_t* numbers) {
  const Floats f;
  const Ints i32;
  const Words u32;
  const Bytes u8;
  for (size_t i = 0; i < count; i += hn::Lanes(f)) {
    auto noise = hn::Set(u32, 0x8000);
    if constexpr (kStochastic) {
      auto x = hn::Add(hn::Iota(u32, static_cast<uint32_t>(i)), hn::Set(u32, key));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(u32, 0x7feb352du));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(u32, 0x846ca68bu));
      noise = hn::ShiftRight<16>(x);
    }
    const auto fixed =
        hn::ConvertTo(i32, hn::MulAdd(hn::LoadU(f, in + i), hn::Set(f, scale), hn::Set(f, kOffset * kFixed)));
    const auto number =
        hn::Sub(hn::ShiftRight<16>(hn::Add(fixed, hn::BitCast(i32, noise))), hn::Set(i32, kOffset));
    const auto limited = hn::Min(hn::Max(number, hn::Set(i32, low)), hn::Set(i32, high));
    hn::StoreU(hn::TruncateTo(u8, hn::BitCast(u32, limited)), u8, numbers + i);
  }
}

// Writes the numbers of a chunk: values [c, c + kChunk) of a row, or what is left of the row, followed by
// zeros. Returns the number of values.
template <int kBits, bool kStochastic>
HWY_INLINE size_t make_chunk(const float* row, size_t cols, size_t c, RowStep step, uint32_t key,
                             std::array<uint8_t, kChunk>& numbers) {
  const size_t count = std::min(kChunk, cols - c);
  const int high = Numbers<kBits>::largest(step.negative()), low = step.negative() ? -high : 0;
  const float* in = row + c;
  std::array<float, kChunk> last;
  if (count % hn::MaxLanes(Floats()) != 0) {  // make_numbers() reads whole vectors
    std::fill(std::copy_n(in, count, last.begin()), last.end(), 0.0f);
    in = last.data();
  }
  make_numbers<kStochastic>(in, kFixed / step.size(), low, high, key + static_cast<uint32_t>(c), count,
                            numbers.data());
  std::fill(numbers.begin() + static_cast<std::ptrdiff_t>(count), numbers.end(), uint8_t{0});
  return count;
}

// A mask with one bit for each number of a chunk, set where `test` is true.
template <class Test>
HWY_INLINE uint64_t bits_where(const uint8_t* numbers, const Test& test) {
  const hn::CappedTag<uint8_t, kChunk> u8;
  const size_t lanes = hn::Lanes(u8);
  static_assert(hn::MaxLanes(u8) == 1 || hn::MaxLanes(u8) >= 8);
  if constexpr (hn::MaxLanes(u8) == 1) {  // plain C++: a mask is smaller than a byte
    uint64_t word = 0;
    for (size_t i = 0; i < kChunk; i += lanes)
      word |= uint64_t{hn::CountTrue(u8, test(hn::LoadU(u8, numbers + i)))} << i;
    return word;
  } else {
    std::array<uint8_t, 2 * sizeof(uint64_t)> bits{};  // more than is used: Highway may write whole words
    for (size_t i = 0; i < kChunk; i += lanes)
      hn::StoreMaskBits(u8, test(hn::LoadU(u8, numbers + i)), bits.data() + i / 8);
    return load_bits(reinterpret_cast<const std::byte*>(bits.data()), sizeof(uint64_t));
  }
}

}  // namespace modelet::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
