// One query against many rows: logits of single samples, and the exact rank of candidates.
//
// Single-threaded; touches nothing but its arguments. Tests compare it with plain C++
// (tests/shard/kernels/reference.h). Widths named n are multiples of kVectorFloats unless said otherwise,
// arrays need no particular alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/array/bf16.h"

namespace modelet::shard::kernels {

// out [count] = dot products of x [n] with rows that begin `stride` elements apart: with the first `count`
// rows, or with the rows `indices`, which are fetched ahead.
void row_dots(const float* rows, size_t stride, size_t count, const float* x, size_t n, float* out);
void row_dots(const Bf16* rows, size_t stride, size_t count, const float* x, size_t n, float* out);
void scattered_row_dots(const float* rows, size_t stride, const uint32_t* indices, size_t count,
                        const float* x, size_t n, float* out);
void scattered_row_dots(const Bf16* rows, size_t stride, const uint32_t* indices, size_t count,
                        const float* x, size_t n, float* out);

}  // namespace modelet::shard::kernels
