// Operations element by element: vectors, activations, and the columns of logits that losses are made of.
//
// Single-threaded; touches nothing but its arguments. Tests compare it with plain C++
// (tests/shard/kernels/reference.h). Widths named n are multiples of kVectorFloats unless said otherwise,
// arrays need no particular alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/array/bf16.h"

namespace modelet::shard::kernels {

float dot(const float* x, const float* y, size_t n);
float dot(const float* x, const Bf16* y, size_t n);
void add(const float* x, float* y, size_t n);            // y += x
void axpy(float a, const float* x, float* y, size_t n);  // y += a x
void axpy(float a, const Bf16* x, float* y, size_t n);
void scale(float a, float* x, size_t n);                                  // x *= a
void add_products(const float* x, const float* y, float* out, size_t n);  // out += x y
// out [n] = sum_i factors[i] * vectors[i] [n]; count > 0.
void linear_combination(const float* factors, const float* const* vectors, size_t count, float* out,
                        size_t n);
float sum_squares(const float* x, size_t n);

void relu(float* x, size_t n);
// gradient = 0 where activation <= 0.
void relu_backward(const float* activation, float* gradient, size_t n);

// Column-wise parts of the softmax over logits [rows, stride], columns [0, n): maximum[c] = max over rows;
// then logits = exp(logits - reference), sum[c] = their sum. The reference is the maximum or near it:
// exponents above kLargestExponent are cut to that, because a float could not hold more.
inline constexpr float kLargestExponent = 88;
void column_max(const float* logits, size_t rows, size_t stride, float* maximum, size_t n);
void column_exp_sum(float* logits, size_t rows, size_t stride, const float* reference, float* sum, size_t n);
// logits = sigmoid(logits); sum[c] = sum over rows of softplus(logits).
void column_sigmoid(float* logits, size_t rows, size_t stride, float* sum, size_t n);
// If a value [rows, stride] of column c < n is larger than best[c], best[c] becomes the largest one and
// where[c] the first row that has it, counted from `first_row`. NaN values are skipped.
void column_best(const float* values, size_t rows, size_t stride, uint32_t first_row, float* best,
                 uint32_t* where, size_t n);
// out[r, c] = x[r, c] * factor[c]; both [rows, stride].
void scale_columns(const float* x, size_t rows, size_t stride, const float* factor, float* out, size_t n);
// Sum over n (any multiple of kVectorFloats) contiguous values.
float sum(const float* x, size_t n);

// Positions i < n with x[i] >= threshold[i]; returns how many were written to `positions` [n].
size_t positions_above(const float* x, const float* threshold, size_t n, uint32_t* positions);

// The first of n values (any n) that is infinite or NaN; n if there is none.
size_t first_not_finite(const float* x, size_t n);
size_t first_not_finite(const Bf16* x, size_t n);

}  // namespace modelet::shard::kernels
