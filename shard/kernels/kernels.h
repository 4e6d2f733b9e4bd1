// The arithmetic of the training step: dense and gathered products, softmax pieces, optimiser rows. Written
// once with Highway and compiled for several instruction sets; the best one that the machine has is chosen at
// run time. The plain C++ versions in reference.h say what each computes; tests compare the two.
//
// All functions are single-threaded and touch nothing but their arguments: callers split work over threads by
// rows. Widths named n are multiples of kWidthMultiple unless said otherwise, arrays need no particular
// alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace modelet::shard::kernels {

// Layer widths and padded batch sizes are multiples of this, so that no instruction set has a partial vector.
inline constexpr size_t kWidthMultiple = 16;

constexpr size_t padded(size_t n) { return (n + kWidthMultiple - 1) / kWidthMultiple * kWidthMultiple; }

// C [m, n] = A [m, k] * B [k, n] + start, where start is C itself (accumulate), or row_start[i] in every
// column of row i, or zero. Rows of B and C are contiguous; A is read at a[i * a_row + j * a_col], so it may
// be a transposed matrix. n: multiple of kWidthMultiple.
struct Gemm {
  size_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  size_t a_row = 0, a_col = 0;
  const float* b = nullptr;
  size_t b_row = 0;
  float* c = nullptr;
  size_t c_row = 0;
  bool accumulate = false;
  const float* row_start = nullptr;  // [m]; only without accumulate
};
void gemm(const Gemm& args);

// out [n] = init [n] (0 if null) + sum_i weights[i] * rows[indices[i] * stride ...]. The embedding-bag sum,
// and its gradient by feature.
void weighted_row_sum(const uint32_t* indices, const float* weights, size_t count, const float* rows,
                      size_t stride, const float* init, float* out, size_t n);

float dot(const float* x, const float* y, size_t n);
void add(const float* x, float* y, size_t n);            // y += x
void axpy(float a, const float* x, float* y, size_t n);  // y += a x
void scale(float a, float* x, size_t n);                 // x *= a
float sum_squares(const float* x, size_t n);

void relu(float* x, size_t n);
// gradient = 0 where activation <= 0.
void relu_backward(const float* activation, float* gradient, size_t n);

// Column-wise pieces of the softmax over logits [rows, stride], columns [begin, begin + n):
// maximum[c] = max over rows; then logits = exp(logits - maximum), sum[c] = their sum.
void column_max(const float* logits, size_t rows, size_t stride, float* maximum, size_t n);
void column_exp_sum(float* logits, size_t rows, size_t stride, const float* maximum, float* sum, size_t n);
// logits = sigmoid(logits); sum[c] = sum over rows of softplus(logits).
void column_sigmoid(float* logits, size_t rows, size_t stride, float* sum, size_t n);
// x[r, c] *= factor[c].
void scale_columns(float* x, size_t rows, size_t stride, const float* factor, size_t n);
// Sum over n (any multiple of kWidthMultiple) contiguous values.
float sum(const float* x, size_t n);

// Positions i < n with x[i] >= threshold[i]; returns how many were written to `positions` [n].
size_t positions_above(const float* x, const float* threshold, size_t n, uint32_t* positions);

// One row of a lazily updated parameter matrix; n may be any number.
struct AdamArgs {
  float beta1, beta2, epsilon;
  float step_size;     // learning rate / (1 - beta1^t)
  float second_scale;  // 1 / (1 - beta2^t)
};
void adam(const AdamArgs& args, const float* gradient, float* weights, float* first, float* second, size_t n);
void adagrad(float learning_rate, float epsilon, const float* gradient, float* weights, float* square_sum,
             size_t n);
void sgd_momentum(float learning_rate, float momentum, const float* gradient, float* weights, float* velocity,
                  size_t n);

// Name of the instruction set in use, and those this machine could use ("AVX3", "AVX2", "EMU128", ...).
std::string instruction_set();
std::vector<std::string> available_instruction_sets();
// Forces one of them (tests, comparisons). UsageError if there is none of that name.
void use_instruction_set(const std::string& name);
// The same with the value of the environment variable MODELET_SIMD, if it is set. Programs call it first.
void use_instruction_set_from_environment();

}  // namespace modelet::shard::kernels
