// The arithmetic of the training step: dense and gathered products, softmax pieces, optimiser rows. Written
// once with Highway and compiled for several instruction sets; the best one that the machine has is chosen at
// run time. The plain C++ versions in reference.h say what each computes; tests compare the two.
//
// All functions are single-threaded and touch nothing but their arguments: callers split work over threads by
// rows. Widths named n are multiples of kVectorFloats unless said otherwise, arrays need no particular
// alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/padding.h"

namespace modelet::shard::kernels {

// C [m, n] = A [m, k] * B [k, n] + start, where start is C itself (accumulate), or row_start[i] in every
// column of row i, or zero. Rows of B and C are contiguous; A is read at a[i * a_row + j * a_col], so it may
// be a transposed matrix. n: multiple of kVectorFloats.
//
// bf16 operands come in pairs, as the instructions that multiply them want it: position j of k stands for two
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

// out [n, 2]: the elements of two rows of a matrix side by side, rounded to the nearest bf16; odd may be null
// (zeros).
void pack_pairs(const float* even, const float* odd, Bf16* out, size_t n);
// The same from rows that are bf16 already.
void interleave(const Bf16* even, const Bf16* odd, Bf16* out, size_t n);
// Rounds to the nearest.
void narrow(const float* x, Bf16* out, size_t n);
void widen(const Bf16* x, float* out, size_t n);

// out [n] = init [n] (0 if null) + sum_i weights[i] * rows[indices[i] * stride ...]. The embedding-bag sum,
// and its gradient by feature. `more`: so many indices follow these, of sums to come; the last rows of this
// one ask the memory for the first of them.
void weighted_row_sum(const uint32_t* indices, const float* weights, size_t count, const float* rows,
                      size_t stride, const float* init, float* out, size_t n, size_t more = 0);
void weighted_row_sum(const uint32_t* indices, const float* weights, size_t count, const Bf16* rows,
                      size_t stride, const Bf16* init, float* out, size_t n, size_t more = 0);
// Several such sums of rows that are in the cache, without init: out [sums, n]; the indices and weights of
// sum s are those at offsets[s] to offsets[s + 1].
void weighted_row_sums(const uint64_t* offsets, size_t sums, const uint32_t* indices, const float* weights,
                       const float* rows, size_t stride, float* out, size_t n);

// out [count] = dots of x [n] with rows that begin `stride` elements apart: the first `count`, or the rows
// `indices`, which are fetched ahead. One query against many rows.
void row_dots(const float* rows, size_t stride, size_t count, const float* x, size_t n, float* out);
void row_dots(const Bf16* rows, size_t stride, size_t count, const float* x, size_t n, float* out);
void scattered_row_dots(const float* rows, size_t stride, const uint32_t* indices, size_t count,
                        const float* x, size_t n, float* out);
void scattered_row_dots(const Bf16* rows, size_t stride, const uint32_t* indices, size_t count,
                        const float* x, size_t n, float* out);

float dot(const float* x, const float* y, size_t n);
float dot(const float* x, const Bf16* y, size_t n);
void add(const float* x, float* y, size_t n);            // y += x
void axpy(float a, const float* x, float* y, size_t n);  // y += a x
void axpy(float a, const Bf16* x, float* y, size_t n);
void scale(float a, float* x, size_t n);  // x *= a
// out [n] = sum_i factors[i] * vectors[i] [n]; count > 0.
void linear_combination(const float* factors, const float* const* vectors, size_t count, float* out,
                        size_t n);
float sum_squares(const float* x, size_t n);

void relu(float* x, size_t n);
// gradient = 0 where activation <= 0.
void relu_backward(const float* activation, float* gradient, size_t n);

// Column-wise pieces of the softmax over logits [rows, stride], columns [begin, begin + n):
// maximum[c] = max over rows; then logits = exp(logits - reference), sum[c] = their sum. The reference is the
// maximum or near it: an exponent above kLargestExponent is taken for that, a float would not hold more.
inline constexpr float kLargestExponent = 88;
void column_max(const float* logits, size_t rows, size_t stride, float* maximum, size_t n);
void column_exp_sum(float* logits, size_t rows, size_t stride, const float* reference, float* sum, size_t n);
// logits = sigmoid(logits); sum[c] = sum over rows of softplus(logits).
void column_sigmoid(float* logits, size_t rows, size_t stride, float* sum, size_t n);
// Where a value [rows, stride] of column c < n is larger than best[c], best[c] becomes the largest one and
// where[c] the first row that has it, counted from `first_row`. What is no number is passed over.
void column_best(const float* values, size_t rows, size_t stride, uint32_t first_row, float* best,
                 uint32_t* where, size_t n);
// x[r, c] *= factor[c].
void scale_columns(float* x, size_t rows, size_t stride, const float* factor, size_t n);
// Sum over n (any multiple of kVectorFloats) contiguous values.
float sum(const float* x, size_t n);

// Positions i < n with x[i] >= threshold[i]; returns how many were written to `positions` [n].
size_t positions_above(const float* x, const float* threshold, size_t n, uint32_t* positions);

// What stands around each place of a text, as sets. ids [before + count + after]; kNoId stands for no word.
// The window of place i < count is ids[i, i + before + 1 + after), its centre ids[i + before]. `sets`: the
// distinct words of each window without its centre's own occurrence, ascending, all sets one after the other;
// with room for count * (before + after) and kVectorFloats more. sizes [count], 0 where the centre is kNoId.
inline constexpr uint32_t kNoId = UINT32_MAX;
inline constexpr size_t kMaxWindow = 256;  // of before + 1 + after
void window_sets(const uint32_t* ids, size_t count, size_t before, size_t after, uint32_t* sets,
                 uint32_t* sizes);

// A set of numbers, as blocks of kRankBlock: blocks[2 * b] has a bit for each number from kRankBlock * b on,
// set if it is a member; blocks[2 * b + 1] is how many members there are in the blocks before (after Jacobson
// 1989, "Space-efficient static trees and graphs"). `ranks`: of those of `numbers` [count] that are members,
// how many members are smaller, in the order of `numbers`; returns how many were written. The blocks reach as
// far as the numbers. Both lists have room for kVectorFloats more, and may be the same.
inline constexpr uint32_t kRankBlock = 32;
size_t member_ranks(const uint32_t* blocks, const uint32_t* numbers, size_t count, uint32_t* ranks);

// Sorts ids [count], with room for kVectorFloats more. A bitonic network (Batcher 1968, "Sorting networks and
// their applications"): for short lists, log^2(count) steps with each.
void sort_ids(uint32_t* ids, size_t count);

// Rows of a lazily updated parameter matrix. Rows kept as bf16 are rounded stochastically where small changes
// have to add up (weights, sums of squares) by random numbers that follow from `noise` and the place in the
// row, and to the nearest elsewhere.
template <class T>
struct RowUpdate {
  const float* gradient;
  T* row;              // the weights; the optimiser's vectors follow
  float rate;          // learning rate; Adam: divided by 1 - beta1^t
  float second_scale;  // Adam: 1 / (1 - beta2^t)
  uint32_t noise;
  // If not null: where another row begins, with its vectors. It is asked for meanwhile, evenly, because the
  // memory delivers most if there is always as much under way.
  const void* ahead;
};
// n: length of each of a row's vectors, a multiple of kVectorFloats, in fp32 any number; `vector`: from the
// beginning of one to that of the next.
struct RowLayout {
  size_t n = 0, vector = 0;
};

// Vectors: first and second moment.
struct AdamArgs {
  float beta1, beta2, epsilon;
};
void adam(const AdamArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout);
void adam(const AdamArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout);
// Vector: sum of squares.
struct AdagradArgs {
  float epsilon;
};
void adagrad(const AdagradArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout);
void adagrad(const AdagradArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout);
// Vector: velocity.
struct MomentumArgs {
  float momentum;
};
void sgd_momentum(const MomentumArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout);
void sgd_momentum(const MomentumArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout);

// Whether the instruction set in use multiplies pairs of bf16 by an instruction of its own. If not, products
// of pairs take longer than those of floats.
bool dot_pairs_in_use();
// Name of the instruction set in use, and those this machine could use, the fastest first ("AVX3_BF16",
// "AVX3", "AVX2", "EMU128", ...; AVX3 is AVX-512).
std::string instruction_set();
std::vector<std::string> available_instruction_sets();
// Forces one of them (tests, comparisons). UsageError if there is none of that name.
void use_instruction_set(const std::string& name);
// The same with the value of the environment variable MODELET_SIMD, if it is set. Programs call it first.
void use_instruction_set_from_environment();

}  // namespace modelet::shard::kernels
