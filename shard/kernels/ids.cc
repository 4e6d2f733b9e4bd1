// Lists of ids: looking them up in a set, and sorting them by a network of exchanges; no branch depends on an
// id.
#include "shard/kernels/ids.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/array/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/ids.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>

#include "shard/kernels/simd/vector-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace modelet::shard::kernels::HWY_NAMESPACE {

using U = Bits<D>;
using Ids = hn::Vec<U>;
constexpr U u;

size_t member_ranks(const uint32_t* blocks, const uint32_t* numbers, size_t count, uint32_t* ranks) {
  constexpr int kBits = std::countr_zero(kRankBlock);
  const hn::RebindToSigned<U> places;
  const auto one = hn::Set(u, 1), within = hn::Set(u, kRankBlock - 1);
  size_t found = 0;
  for (size_t i = 0; i < count; i += kLanes) {
    const auto given = hn::FirstN(u, count - i);
    const auto number = hn::IfThenElseZero(given, hn::LoadU(u, numbers + i));
    const auto block = hn::BitCast(places, hn::ShiftLeft<1>(hn::ShiftRight<kBits>(number)));
    const auto members = hn::GatherIndex(u, blocks, block);
    const auto before = hn::GatherIndex(u, blocks + 1, block);
    const auto bit = hn::Shl(one, hn::And(number, within));
    const auto rank = hn::Add(before, hn::PopulationCount(hn::And(members, hn::Sub(bit, one))));
    const auto member = hn::And(given, hn::TestBit(members, bit));
    found += compress_store(u, rank, member, ranks + found);
  }
  return found;
}

// Puts each lane and lane ^ kWith in order.
template <size_t kWith>
HWY_INLINE Ids exchange(Ids ids) {
  static constexpr auto kOther = [] {
    std::array<int32_t, kLanes> other{};
    for (size_t i = 0; i < kLanes; ++i) other[i] = static_cast<int32_t>(i ^ kWith);
    return other;
  }();
  const auto others = hn::TableLookupLanes(ids, hn::SetTableIndices(u, kOther.data()));
  const auto upper = hn::TestBit(hn::Iota(u, 0), hn::Set(u, uint32_t{std::bit_floor(kWith)}));
  return hn::IfThenElse(upper, hn::Max(ids, others), hn::Min(ids, others));
}

// Sorts each kSize lanes. Their ids must first rise and then fall, or the other way round.
template <size_t kSize>
HWY_INLINE Ids merge_lanes(Ids ids) {
  if constexpr (kSize > 1) ids = merge_lanes<kSize / 2>(exchange<kSize / 2>(ids));
  return ids;
}

// Sorts each kSize lanes.
template <size_t kSize>
HWY_INLINE Ids sort_lanes(Ids ids) {
  if constexpr (kSize > 1) ids = merge_lanes<kSize / 2>(exchange<kSize - 1>(sort_lanes<kSize / 2>(ids)));
  return ids;
}

// The same network over vectors, as if their number were a power of two. Elements behind the last vector
// count as larger than all ids. They would stay there, so they need not exist.
void sort_ids(uint32_t* ids, size_t count) {
  const size_t rows = (count + kLanes - 1) / kLanes;
  std::fill(ids + count, ids + rows * kLanes, kNoId);
  const auto row = [&](size_t r) HWY_ATTR { return hn::LoadU(u, ids + r * kLanes); };
  const auto set_row = [&](size_t r, Ids values) HWY_ATTR { hn::StoreU(values, u, ids + r * kLanes); };
  for (size_t r = 0; r < rows; ++r) set_row(r, sort_lanes<kLanes>(row(r)));
  for (size_t size = 2; size < 2 * rows; size *= 2) {
    for (size_t begin = 0; begin < rows; begin += size) {
      const size_t end = begin + size;
      for (size_t r = end > rows ? end - rows : 0; r < size / 2; ++r) {
        const auto low = row(begin + r), high = hn::Reverse(u, row(end - 1 - r));
        set_row(begin + r, hn::Min(low, high));
        set_row(end - 1 - r, hn::Reverse(u, hn::Max(low, high)));
      }
    }
    for (size_t apart = size / 4; apart > 0; apart /= 2)
      for (size_t begin = 0; begin + apart < rows; begin += 2 * apart)
        for (size_t r = begin; r < std::min(begin + apart, rows - apart); ++r) {
          const auto low = row(r), high = row(r + apart);
          set_row(r, hn::Min(low, high));
          set_row(r + apart, hn::Max(low, high));
        }
    for (size_t r = 0; r < rows; ++r) set_row(r, merge_lanes<kLanes>(row(r)));
  }
}

}  // namespace modelet::shard::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace modelet::shard::kernels {

HWY_EXPORT(member_ranks);
HWY_EXPORT(sort_ids);

size_t member_ranks(const uint32_t* blocks, const uint32_t* numbers, size_t count, uint32_t* ranks) {
  return HWY_DYNAMIC_DISPATCH(member_ranks)(blocks, numbers, count, ranks);
}

void sort_ids(uint32_t* ids, size_t count) { HWY_DYNAMIC_DISPATCH(sort_ids)(ids, count); }

}  // namespace modelet::shard::kernels
#endif
