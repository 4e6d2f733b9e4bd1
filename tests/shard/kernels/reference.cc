#include "tests/shard/kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

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

void window_sets(const uint32_t* ids, size_t count, size_t before, size_t after, uint32_t* sets,
                 uint32_t* sizes) {
  for (size_t i = 0; i < count; ++i) {
    std::set<uint32_t> set;
    for (size_t j = i; j < i + before + 1 + after; ++j)
      if (j != i + before && ids[j] != kNoId && ids[i + before] != kNoId) set.insert(ids[j]);
    sets = std::copy(set.begin(), set.end(), sets);
    sizes[i] = static_cast<uint32_t>(set.size());
  }
}

float dot(const float* x, const float* y, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += double{x[i]} * y[i];
  return static_cast<float>(sum);
}

void column_best(const float* values, size_t rows, size_t stride, uint32_t first_row, float* best,
                 uint32_t* where, size_t n) {
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < n; ++c)
      if (values[r * stride + c] > best[c]) {
        best[c] = values[r * stride + c];
        where[c] = first_row + static_cast<uint32_t>(r);
      }
}

void column_max(const float* logits, size_t rows, size_t stride, float* maximum, size_t n) {
  for (size_t c = 0; c < n; ++c) {
    maximum[c] = -std::numeric_limits<float>::infinity();
    for (size_t r = 0; r < rows; ++r) maximum[c] = std::max(maximum[c], logits[r * stride + c]);
  }
}

void column_exp_sum(float* logits, size_t rows, size_t stride, const float* reference, float* sum, size_t n) {
  for (size_t c = 0; c < n; ++c) {
    double total = 0;
    for (size_t r = 0; r < rows; ++r) {
      const double e =
          std::exp(std::min(double{logits[r * stride + c]} - reference[c], double{kLargestExponent}));
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

void adam(const AdamArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout) {
  for (const RowUpdate<float>& r : rows)
    for (size_t i = 0; i < layout.n; ++i) {
      const float g = r.gradient[i];
      float &weight = r.row[i], &first = r.row[layout.vector + i], &second = r.row[2 * layout.vector + i];
      first = args.beta1 * first + (1 - args.beta1) * g;
      second = args.beta2 * second + (1 - args.beta2) * g * g;
      weight -= r.rate * first / (std::sqrt(second * r.second_scale) + args.epsilon);
    }
}

void rmsprop(const RmspropArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout) {
  for (const RowUpdate<float>& r : rows)
    for (size_t i = 0; i < layout.n; ++i) {
      const float g = r.gradient[i];
      float &weight = r.row[i], &second = r.row[layout.vector + i];
      second = args.beta2 * second + (1 - args.beta2) * g * g;
      weight -= r.rate * g / (std::sqrt(second * r.second_scale) + args.epsilon);
    }
}

void adagrad(const AdagradArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout) {
  for (const RowUpdate<float>& r : rows)
    for (size_t i = 0; i < layout.n; ++i) {
      const float g = r.gradient[i];
      float &weight = r.row[i], &square_sum = r.row[layout.vector + i];
      square_sum += g * g;
      weight -= r.rate * g / (std::sqrt(square_sum) + args.epsilon);
    }
}

void sgd_momentum(const MomentumArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout) {
  for (const RowUpdate<float>& r : rows)
    for (size_t i = 0; i < layout.n; ++i) {
      float &weight = r.row[i], &velocity = r.row[layout.vector + i];
      velocity = args.momentum * velocity + r.gradient[i];
      weight -= r.rate * velocity;
    }
}

}  // namespace modelet::shard::kernels::reference
