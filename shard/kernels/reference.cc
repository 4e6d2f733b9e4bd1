#include "shard/kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace modelet::shard::kernels::reference {

void gemm(const Gemm& g) {
  for (size_t i = 0; i < g.m; ++i)
    for (size_t j = 0; j < g.n; ++j) {
      double sum = g.accumulate ? g.c[i * g.c_row + j] : g.row_start != nullptr ? g.row_start[i] : 0.0;
      for (size_t p = 0; p < g.k; ++p) sum += double{g.a[i * g.a_row + p * g.a_col]} * g.b[p * g.b_row + j];
      g.c[i * g.c_row + j] = static_cast<float>(sum);
    }
}

void weighted_row_sum(const uint32_t* indices, const float* weights, size_t count, const float* rows,
                      size_t stride, const float* init, float* out, size_t n) {
  for (size_t c = 0; c < n; ++c) {
    double sum = init != nullptr ? init[c] : 0.0;
    for (size_t i = 0; i < count; ++i) sum += double{weights[i]} * rows[indices[i] * stride + c];
    out[c] = static_cast<float>(sum);
  }
}

float dot(const float* x, const float* y, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += double{x[i]} * y[i];
  return static_cast<float>(sum);
}

void column_max(const float* logits, size_t rows, size_t stride, float* maximum, size_t n) {
  for (size_t c = 0; c < n; ++c) {
    maximum[c] = -std::numeric_limits<float>::infinity();
    for (size_t r = 0; r < rows; ++r) maximum[c] = std::max(maximum[c], logits[r * stride + c]);
  }
}

void column_exp_sum(float* logits, size_t rows, size_t stride, const float* maximum, float* sum, size_t n) {
  for (size_t c = 0; c < n; ++c) {
    double total = 0;
    for (size_t r = 0; r < rows; ++r) {
      const double e = std::exp(double{logits[r * stride + c]} - maximum[c]);
      logits[r * stride + c] = static_cast<float>(e);
      total += e;
    }
    sum[c] = static_cast<float>(total);
  }
}

void column_sigmoid(float* logits, size_t rows, size_t stride, float* sum, size_t n) {
  for (size_t c = 0; c < n; ++c) {
    double total = 0;
    for (size_t r = 0; r < rows; ++r) {
      const double z = logits[r * stride + c];
      total += std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
      logits[r * stride + c] = static_cast<float>(1.0 / (1.0 + std::exp(-z)));
    }
    sum[c] = static_cast<float>(total);
  }
}

void adam(const AdamArgs& a, const float* gradient, float* weights, float* first, float* second, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    first[i] = a.beta1 * first[i] + (1 - a.beta1) * gradient[i];
    second[i] = a.beta2 * second[i] + (1 - a.beta2) * gradient[i] * gradient[i];
    weights[i] -= a.step_size * first[i] / (std::sqrt(second[i] * a.second_scale) + a.epsilon);
  }
}

void adagrad(const AdagradArgs& a, const float* gradient, float* weights, float* square_sum, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    square_sum[i] += gradient[i] * gradient[i];
    weights[i] -= a.learning_rate * gradient[i] / (std::sqrt(square_sum[i]) + a.epsilon);
  }
}

void sgd_momentum(const MomentumArgs& a, const float* gradient, float* weights, float* velocity, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    velocity[i] = a.momentum * velocity[i] + gradient[i];
    weights[i] -= a.learning_rate * velocity[i];
  }
}

}  // namespace modelet::shard::kernels::reference
