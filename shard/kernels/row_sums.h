// Weighted sums of rows that are chosen by index: the work of the sparse input layer.
//
// Single-threaded; touches nothing but its arguments. Tests compare it with plain C++
// (tests/shard/kernels/reference.h). Widths named n are multiples of kVectorFloats unless said otherwise,
// arrays need no particular alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/array/bf16.h"

namespace modelet::shard::kernels {

// out [n] = init [n] (0 if null) + sum_i weights[i] * rows[indices[i] * stride ...]. This is the
// embedding-bag sum, and its gradient by feature. `more`: how many indices of later sums follow these. The
// end of this sum requests the rows of the first of them.
void weighted_row_sum(const uint32_t* indices, const float* weights, size_t count, const float* rows,
                      size_t stride, const float* init, float* out, size_t n, size_t more = 0);
void weighted_row_sum(const uint32_t* indices, const float* weights, size_t count, const Bf16* rows,
                      size_t stride, const Bf16* init, float* out, size_t n, size_t more = 0);
// Several such sums of rows that are in the cache, without init: out [sums, n]; sum s has the indices and
// weights from offsets[s] to offsets[s + 1].
void weighted_row_sums(const uint64_t* offsets, size_t sums, const uint32_t* indices, const float* weights,
                       const float* rows, size_t stride, float* out, size_t n);

}  // namespace modelet::shard::kernels
