// Shared by the kernel files: the widest vector of floats, and how fp32 and bf16 numbers get into it and out
// of it. Compiled once per instruction set, like the files that include it.
#if defined(MODELET_SHARD_KERNELS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MODELET_SHARD_KERNELS_VECTOR_INL_H_
#undef MODELET_SHARD_KERNELS_VECTOR_INL_H_
#else
#define MODELET_SHARD_KERNELS_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <array>

#include "base/array/bf16.h"
#include "base/array/padding.h"

HWY_BEFORE_NAMESPACE();
namespace modelet::shard::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr D d;
constexpr size_t kLanes = HWY_LANES(float);
static_assert(kVectorFloats % kLanes == 0);

// The same number of 32-bit integers as Tag has floats.
template <class Tag>
using Bits = hn::RebindToUnsigned<Tag>;

template <class Tag>
HWY_INLINE hn::Vec<Tag> load(Tag tag, const float* from) {
  return hn::LoadU(tag, from);
}

template <class Tag>
HWY_INLINE hn::Vec<Tag> load(Tag tag, const Bf16* from) {
  const hn::Rebind<uint16_t, Tag> halves;
  const auto bits = hn::PromoteTo(Bits<Tag>(), hn::LoadU(halves, &from->bits));
  return hn::BitCast(tag, hn::ShiftLeft<16>(bits));
}

// Bits of the nearest bf16 in the upper half; the lower half is to be dropped.
template <class Tag>
HWY_INLINE hn::Vec<Bits<Tag>> round_to_bf16(Tag, hn::Vec<Tag> value) {
  const Bits<Tag> u32;
  const auto bits = hn::BitCast(u32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u32, 1u));
  return hn::Add(bits, hn::Add(odd, hn::Set(u32, 0x7fffu)));
}

template <class Tag>
HWY_INLINE void store_upper_halves(Tag, hn::Vec<Bits<Tag>> bits, Bf16* to) {
  const hn::Rebind<uint16_t, Tag> halves;
  hn::StoreU(hn::TruncateTo(halves, hn::ShiftRight<16>(bits)), halves, &to->bits);
}

// Writes the lanes of `mask` side by side, as a whole vector; returns how many there are.
HWY_INLINE size_t compress_store(Bits<D> u, hn::Vec<Bits<D>> values, hn::Mask<Bits<D>> mask, uint32_t* to) {
#if HWY_TARGET == HWY_AVX2
  // Compress is not used, because GCC 12 copies its table to the stack each time.
  static constexpr auto kLanesOfMask = [] {
    std::array<std::array<uint8_t, kLanes>, 1 << kLanes> lanes{};
    for (size_t bits = 0; bits < lanes.size(); ++bits)
      for (size_t lane = 0, place = 0; lane < kLanes; ++lane)
        if ((bits >> lane & 1) != 0) lanes[bits][place++] = static_cast<uint8_t>(lane);
    return lanes;
  }();
  std::array<uint8_t, 8> bits;  // as many as StoreMaskBits may write
  hn::StoreMaskBits(u, mask, bits.data());
  const auto lanes = hn::LoadU(hn::Rebind<uint8_t, Bits<D>>(), kLanesOfMask[bits[0]].data());
  hn::StoreU(hn::TableLookupLanes(values, hn::IndicesFromVec(u, hn::PromoteTo(u, lanes))), u, to);
#else
  hn::StoreU(hn::Compress(values, mask), u, to);
#endif
  return hn::CountTrue(u, mask);
}

template <class Tag>
HWY_INLINE void store(Tag tag, hn::Vec<Tag> value, float* to) {
  hn::StoreU(value, tag, to);
}
template <class Tag>
HWY_INLINE void store(Tag tag, hn::Vec<Tag> value, Bf16* to) {
  store_upper_halves(tag, round_to_bf16(tag, value), to);
}

}  // namespace modelet::shard::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
