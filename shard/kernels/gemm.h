// Dense products, and how matrices are packed for them.
//
// Single-threaded; touches nothing but its arguments. Tests compare it with plain C++
// (tests/shard/kernels/reference.h). Widths named n are multiples of kVectorFloats unless said otherwise,
// arrays need no particular alignment.
#pragma once

#include <cstddef>

#include "base/array/bf16.h"
#include "base/array/matrix.h"

namespace modelet::shard::kernels {

// C [m, n] = A [m, k] * B [k, n] + start, where start is C itself (accumulate), or row_start[i] in every
// column of row i, or zero. Rows of B and C are contiguous; A is read at a[i * a_row + j * a_col], so it may
// be a transposed matrix. n: multiple of kVectorFloats.
//
// bf16 operands come in pairs, as the instructions for them require: position j of k stands for two
// neighbours along k, which lie side by side (pack_pairs()). k, a_row, a_col and b_row count pairs. Sums are
// fp32.
template <class Element>
struct GemmOf {
  size_t m = 0, n = 0, k = 0;
  const Element* a = nullptr;
  size_t a_row = 0, a_col = 0;
  const Element* b = nullptr;
  size_t b_row = 0;
  float* c = nullptr;
  size_t c_row = 0;
  bool accumulate = false;
  const float* row_start = nullptr;  // [m]; only without accumulate
};
using Gemm = GemmOf<float>;
using PairGemm = GemmOf<Bf16>;
void gemm(const Gemm& args);
void gemm(const PairGemm& args);

// gemm(args) with operands rounded to bf16. b_pairs [k / 2, n, 2]: those of B, which stands for many products;
// a_pairs [m, k + 1]: scratch. A is read by rows of whole vectors, or, if it is transposed, m is a multiple of
// kVectorFloats.
void gemm_of_pairs(const Gemm& args, const Bf16* b_pairs, Bf16* a_pairs);

// out [n, 2]: the elements of two rows of a matrix side by side, rounded to the nearest bf16; odd may be null
// (zeros).
void pack_pairs(const float* even, const float* odd, Bf16* out, size_t n);
// All rows of a matrix, two by two: out [rows / 2, stride, 2], with zeros beside an odd last one.
void pack_pairs(ConstMatrix matrix, Bf16* out, size_t stride);
// The same from rows that are already bf16.
void interleave(const Bf16* even, const Bf16* odd, Bf16* out, size_t n);
// Rounds to the nearest.
void narrow(const float* x, Bf16* out, size_t n);
void widen(const Bf16* x, float* out, size_t n);

}  // namespace modelet::shard::kernels
