// Lists of ids: looking them up in a set, and sorting them.
//
// Single-threaded; touches nothing but its arguments. Tests compare it with plain C++
// (tests/shard/kernels/reference.h). Widths named n are multiples of kVectorFloats unless said otherwise,
// arrays need no particular alignment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace modelet::shard::kernels {

inline constexpr uint32_t kNoId = UINT32_MAX;

// A set of numbers, as blocks of kRankBlock: blocks[2 * b] has a bit for each number from kRankBlock * b on,
// set if it is a member; blocks[2 * b + 1] is the number of members in the blocks before (after Jacobson
// 1989, "Space-efficient static trees and graphs"). For each of `numbers` [count] that is a member, in order,
// `ranks` gets the number of smaller members; returns how many were written. The blocks cover all numbers.
// Both lists have room for kVectorFloats more, and may be the same.
inline constexpr uint32_t kRankBlock = 32;
size_t member_ranks(const uint32_t* blocks, const uint32_t* numbers, size_t count, uint32_t* ranks);

// Sorts ids [count], with room for kVectorFloats more. A bitonic network (Batcher 1968, "Sorting networks and
// their applications"): meant for short lists, because each id takes part in log^2(count) steps.
void sort_ids(uint32_t* ids, size_t count);

// For sorts of ids by values. Values from files and from other nodes may be NaN, or become NaN by an overflow,
// and sorts leave their arrays if `<` is not an order.
//
// Whether item a with value x comes before item b with value y: the smaller value first, of equal values the
// lower item, and NaN after all others.
constexpr bool comes_before(float x, uint32_t a, float y, uint32_t b) {
  const bool x_is_nan = x != x, y_is_nan = y != y;
  if (x_is_nan || y_is_nan) return x_is_nan == y_is_nan ? a < b : y_is_nan;
  return x != y ? x < y : a < b;
}

}  // namespace modelet::shard::kernels
