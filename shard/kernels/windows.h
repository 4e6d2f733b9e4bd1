// The words around each word of a text, as sets of ids.
//
// Single-threaded; touches nothing but its arguments. Tests compare it with plain C++
// (tests/shard/kernels/reference.h). Widths named n are multiples of kVectorFloats unless said otherwise,
// arrays need no particular alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shard/kernels/ids.h"

namespace modelet::shard::kernels {

// The words around each place of a text, as sets. ids [before + count + after]; kNoId stands for no word. The
// window of place i < count is ids[i, i + before + 1 + after), its centre ids[i + before]. `sets`: the
// distinct words of each window without its centre's own occurrence, ascending, all sets one after the other;
// with room for count * (before + after) and kVectorFloats more. sizes [count]: 0 where the centre is kNoId.
inline constexpr size_t kMaxWindow = 256;  // of before + 1 + after
void window_sets(const uint32_t* ids, size_t count, size_t before, size_t after, uint32_t* sets,
                 uint32_t* sizes);

}  // namespace modelet::shard::kernels
