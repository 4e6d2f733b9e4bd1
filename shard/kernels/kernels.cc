#include "shard/kernels/kernels.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "shard/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/kernels.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <hwy/cache_control.h>
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace modelet::shard::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr D d;
constexpr size_t kLanes = HWY_LANES(float);
static_assert(kWidthMultiple % kLanes == 0);

// ---- GEMM
// ---------------------------------------------------------------------------------------------------------
// No packing: the callers' layouts already give what the micro-kernel wants, B rows contiguous and A read as
// scalars. Registers: kTileRows x kTileVectors accumulators, kTileVectors of B, one broadcast of A.
constexpr size_t kTileRows = 6;
constexpr size_t kTileVectors = kLanes == 8 ? 2 : 4;  // AVX2 has 16 registers, AVX-512 and NEON 32
constexpr size_t kDepth = 128;  // k block: kDepth x kTileVectors vectors of B stay in L1

template <size_t kRows, size_t kVectors>
HWY_INLINE void gemm_tile(size_t k, const float* HWY_RESTRICT a, size_t a_row, size_t a_col,
                          const float* HWY_RESTRICT b, size_t b_row, float* HWY_RESTRICT c, size_t c_row,
                          bool accumulate, const float* HWY_RESTRICT row_start) {
  V acc[kRows][kVectors];
  HWY_UNROLL(8)
  for (size_t i = 0; i < kRows; ++i) {
    const V start = row_start != nullptr ? hn::Set(d, row_start[i]) : hn::Zero(d);
    HWY_UNROLL(4)
    for (size_t j = 0; j < kVectors; ++j)
      acc[i][j] = accumulate ? hn::LoadU(d, c + i * c_row + j * kLanes) : start;
  }
  for (size_t p = 0; p < k; ++p) {
    V row[kVectors];
    HWY_UNROLL(4)
    for (size_t j = 0; j < kVectors; ++j) row[j] = hn::LoadU(d, b + j * kLanes);
    HWY_UNROLL(8)
    for (size_t i = 0; i < kRows; ++i) {
      const V value = hn::Set(d, a[i * a_row]);
      HWY_UNROLL(4)
      for (size_t j = 0; j < kVectors; ++j) acc[i][j] = hn::MulAdd(value, row[j], acc[i][j]);
    }
    a += a_col;
    b += b_row;
  }
  HWY_UNROLL(8)
  for (size_t i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (size_t j = 0; j < kVectors; ++j) hn::StoreU(acc[i][j], d, c + i * c_row + j * kLanes);
  }
}

// All rows of one column panel that is kVectors wide.
template <size_t kVectors>
HWY_NOINLINE void gemm_panel(const Gemm& g, size_t first_k, size_t k, size_t column) {
  const bool accumulate = g.accumulate || first_k > 0;
  const float* b = g.b + first_k * g.b_row + column;
  const float* a = g.a + first_k * g.a_col;
  float* c = g.c + column;
  const auto start = [&](size_t i) { return g.row_start != nullptr ? g.row_start + i : nullptr; };
  size_t i = 0;
  for (; i + kTileRows <= g.m; i += kTileRows)
    gemm_tile<kTileRows, kVectors>(k, a + i * g.a_row, g.a_row, g.a_col, b, g.b_row, c + i * g.c_row, g.c_row,
                                   accumulate, start(i));
  for (; i + 2 <= g.m; i += 2)
    gemm_tile<2, kVectors>(k, a + i * g.a_row, g.a_row, g.a_col, b, g.b_row, c + i * g.c_row, g.c_row,
                           accumulate, start(i));
  if (i < g.m)
    gemm_tile<1, kVectors>(k, a + i * g.a_row, g.a_row, g.a_col, b, g.b_row, c + i * g.c_row, g.c_row,
                           accumulate, start(i));
}

void gemm(const Gemm& g) {
  if (g.k == 0 && !g.accumulate)
    for (size_t i = 0; i < g.m; ++i)
      std::fill_n(g.c + i * g.c_row, g.n, g.row_start != nullptr ? g.row_start[i] : 0.0f);
  for (size_t first_k = 0; first_k < g.k; first_k += kDepth) {
    const size_t k = std::min(kDepth, g.k - first_k);
    size_t column = 0;
    for (; column + kTileVectors * kLanes <= g.n; column += kTileVectors * kLanes)
      gemm_panel<kTileVectors>(g, first_k, k, column);
    for (; column + kLanes < g.n; column += 2 * kLanes) gemm_panel<2>(g, first_k, k, column);
    if (column < g.n) gemm_panel<1>(g, first_k, k, column);
  }
}

// ---- Gathered sums
// ------------------------------------------------------------------------------------------------ kVectors
// wide. Narrow panels add up kChains rows at a time: a single chain of additions would wait for each one's
// latency.
template <size_t kVectors, size_t kChains>
HWY_INLINE void row_sum_panel(const uint32_t* HWY_RESTRICT indices, const float* HWY_RESTRICT weights,
                              size_t count, const float* HWY_RESTRICT rows, size_t stride,
                              const float* HWY_RESTRICT init, float* HWY_RESTRICT out) {
  constexpr size_t kAhead = 8;  // rows are far apart: fetch them before they are needed
  V acc[kChains][kVectors];
  HWY_UNROLL(4)
  for (size_t chain = 0; chain < kChains; ++chain) {
    HWY_UNROLL(8)
    for (size_t j = 0; j < kVectors; ++j)
      acc[chain][j] = chain == 0 && init != nullptr ? hn::LoadU(d, init + j * kLanes) : hn::Zero(d);
  }
  const auto add_row = [&](size_t i, V* HWY_RESTRICT sum) HWY_ATTR {
    if (i + kAhead < count) {
      const float* ahead = rows + indices[i + kAhead] * stride;
      HWY_UNROLL(8)
      for (size_t j = 0; j < kVectors * kLanes; j += 16) hwy::Prefetch(ahead + j);
    }
    const float* row = rows + indices[i] * stride;
    const V weight = hn::Set(d, weights[i]);
    HWY_UNROLL(8)
    for (size_t j = 0; j < kVectors; ++j) sum[j] = hn::MulAdd(weight, hn::LoadU(d, row + j * kLanes), sum[j]);
  };
  size_t i = 0;
  for (; i + kChains <= count; i += kChains) {
    HWY_UNROLL(4)
    for (size_t chain = 0; chain < kChains; ++chain) add_row(i + chain, acc[chain]);
  }
  for (; i < count; ++i) add_row(i, acc[0]);
  HWY_UNROLL(8)
  for (size_t j = 0; j < kVectors; ++j) {
    V sum = acc[0][j];
    HWY_UNROLL(4)
    for (size_t chain = 1; chain < kChains; ++chain) sum = hn::Add(sum, acc[chain][j]);
    hn::StoreU(sum, d, out + j * kLanes);
  }
}

void weighted_row_sum(const uint32_t* indices, const float* weights, size_t count, const float* rows,
                      size_t stride, const float* init, float* out, size_t n) {
  size_t c = 0;
  const auto at = [&](size_t offset) { return init != nullptr ? init + offset : nullptr; };
  for (; c + 8 * kLanes <= n; c += 8 * kLanes)
    row_sum_panel<8, 1>(indices, weights, count, rows + c, stride, at(c), out + c);
  for (; c + 2 * kLanes <= n; c += 2 * kLanes)
    row_sum_panel<2, 4>(indices, weights, count, rows + c, stride, at(c), out + c);
  for (; c < n; c += kLanes) row_sum_panel<1, 4>(indices, weights, count, rows + c, stride, at(c), out + c);
}

// ---- Vectors
// ------------------------------------------------------------------------------------------------------
float dot(const float* x, const float* y, size_t n) {
  V a = hn::Zero(d), b = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    a = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), a);
    b = hn::MulAdd(hn::LoadU(d, x + i + kLanes), hn::LoadU(d, y + i + kLanes), b);
  }
  if (i < n) a = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), a);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
}

void add(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; i += kLanes)
    hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
}

void axpy(float a, const float* x, float* y, size_t n) {
  const V factor = hn::Set(d, a);
  for (size_t i = 0; i < n; i += kLanes)
    hn::StoreU(hn::MulAdd(factor, hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
}

void scale(float a, float* x, size_t n) {
  const V factor = hn::Set(d, a);
  for (size_t i = 0; i < n; i += kLanes) hn::StoreU(hn::Mul(factor, hn::LoadU(d, x + i)), d, x + i);
}

float sum(const float* x, size_t n) {
  V total = hn::Zero(d);
  for (size_t i = 0; i < n; i += kLanes) total = hn::Add(total, hn::LoadU(d, x + i));
  return hn::GetLane(hn::SumOfLanes(d, total));
}

void relu(float* x, size_t n) {
  for (size_t i = 0; i < n; i += kLanes) hn::StoreU(hn::Max(hn::LoadU(d, x + i), hn::Zero(d)), d, x + i);
}

void relu_backward(const float* activation, float* gradient, size_t n) {
  for (size_t i = 0; i < n; i += kLanes) {
    const auto active = hn::Gt(hn::LoadU(d, activation + i), hn::Zero(d));
    hn::StoreU(hn::IfThenElseZero(active, hn::LoadU(d, gradient + i)), d, gradient + i);
  }
}

// ---- Softmax and sigmoid over columns
// -----------------------------------------------------------------------------
void column_max(const float* logits, size_t rows, size_t stride, float* maximum, size_t n) {
  for (size_t c = 0; c < n; c += kLanes) {
    V best = hn::Set(d, -std::numeric_limits<float>::infinity());
    for (size_t r = 0; r < rows; ++r) best = hn::Max(best, hn::LoadU(d, logits + r * stride + c));
    hn::StoreU(best, d, maximum + c);
  }
}

void column_exp_sum(float* logits, size_t rows, size_t stride, const float* maximum, float* sums, size_t n) {
  for (size_t c = 0; c < n; c += kLanes) {
    const V best = hn::LoadU(d, maximum + c);
    V total = hn::Zero(d);
    for (size_t r = 0; r < rows; ++r) {
      float* x = logits + r * stride + c;
      const V e = hn::Exp(d, hn::Sub(hn::LoadU(d, x), best));
      total = hn::Add(total, e);
      hn::StoreU(e, d, x);
    }
    hn::StoreU(total, d, sums + c);
  }
}

void column_sigmoid(float* logits, size_t rows, size_t stride, float* sums, size_t n) {
  const V one = hn::Set(d, 1.0f);
  for (size_t c = 0; c < n; c += kLanes) {
    V total = hn::Zero(d);
    for (size_t r = 0; r < rows; ++r) {
      float* x = logits + r * stride + c;
      const V z = hn::LoadU(d, x);
      const V e = hn::Exp(d, hn::Neg(hn::Abs(z)));  // in (0, 1]: no overflow on either side
      const V inverse = hn::Div(one, hn::Add(one, e));
      const V p = hn::IfThenElse(hn::Lt(z, hn::Zero(d)), hn::Mul(e, inverse), inverse);
      total = hn::Add(total, hn::Add(hn::Max(z, hn::Zero(d)), hn::Log1p(d, e)));
      hn::StoreU(p, d, x);
    }
    hn::StoreU(total, d, sums + c);
  }
}

void scale_columns(float* x, size_t rows, size_t stride, const float* factor, size_t n) {
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < n; c += kLanes) {
      float* value = x + r * stride + c;
      hn::StoreU(hn::Mul(hn::LoadU(d, value), hn::LoadU(d, factor + c)), d, value);
    }
}

size_t positions_above(const float* x, const float* threshold, size_t n, uint32_t* positions) {
  size_t found = 0;
  for (size_t i = 0; i < n; i += kLanes) {
    if (hn::AllFalse(d, hn::Ge(hn::LoadU(d, x + i), hn::LoadU(d, threshold + i)))) continue;  // nearly always
    for (size_t lane = i; lane < i + kLanes; ++lane)
      if (x[lane] >= threshold[lane]) positions[found++] = static_cast<uint32_t>(lane);
  }
  return found;
}

// ---- Optimisers
// --------------------------------------------------------------------------------------------------- Rows
// are multiples of a vector, except biases: single values, which go through a vector of which one lane
// counts.
template <class Update>
HWY_INLINE void for_each_vector(size_t n, const Update& update) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) update(i, d);
  const hn::CappedTag<float, 1> one;
  for (; i < n; ++i) update(i, one);
}

void adam(const AdamArgs& args, const float* gradient, float* weights, float* first, float* second,
          size_t n) {
  for_each_vector(n, [&](size_t i, auto tag) HWY_ATTR {
    const auto g = hn::LoadU(tag, gradient + i);
    const auto m = hn::MulAdd(hn::Set(tag, args.beta1), hn::LoadU(tag, first + i),
                              hn::Mul(hn::Set(tag, 1 - args.beta1), g));
    const auto v = hn::MulAdd(hn::Set(tag, args.beta2), hn::LoadU(tag, second + i),
                              hn::Mul(hn::Set(tag, 1 - args.beta2), hn::Mul(g, g)));
    hn::StoreU(m, tag, first + i);
    hn::StoreU(v, tag, second + i);
    const auto root =
        hn::Add(hn::Sqrt(hn::Mul(v, hn::Set(tag, args.second_scale))), hn::Set(tag, args.epsilon));
    const auto change = hn::Div(hn::Mul(hn::Set(tag, args.step_size), m), root);
    hn::StoreU(hn::Sub(hn::LoadU(tag, weights + i), change), tag, weights + i);
  });
}

void adagrad(float learning_rate, float epsilon, const float* gradient, float* weights, float* square_sum,
             size_t n) {
  for_each_vector(n, [&](size_t i, auto tag) HWY_ATTR {
    const auto g = hn::LoadU(tag, gradient + i);
    const auto s = hn::MulAdd(g, g, hn::LoadU(tag, square_sum + i));
    hn::StoreU(s, tag, square_sum + i);
    const auto root = hn::Add(hn::Sqrt(s), hn::Set(tag, epsilon));
    const auto change = hn::Div(hn::Mul(hn::Set(tag, learning_rate), g), root);
    hn::StoreU(hn::Sub(hn::LoadU(tag, weights + i), change), tag, weights + i);
  });
}

void sgd_momentum(float learning_rate, float momentum, const float* gradient, float* weights, float* velocity,
                  size_t n) {
  for_each_vector(n, [&](size_t i, auto tag) HWY_ATTR {
    const auto u =
        hn::MulAdd(hn::Set(tag, momentum), hn::LoadU(tag, velocity + i), hn::LoadU(tag, gradient + i));
    hn::StoreU(u, tag, velocity + i);
    hn::StoreU(hn::NegMulAdd(hn::Set(tag, learning_rate), u, hn::LoadU(tag, weights + i)), tag, weights + i);
  });
}

}  // namespace modelet::shard::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace modelet::shard::kernels {

HWY_EXPORT(gemm);
HWY_EXPORT(weighted_row_sum);
HWY_EXPORT(dot);
HWY_EXPORT(add);
HWY_EXPORT(axpy);
HWY_EXPORT(scale);
HWY_EXPORT(sum);
HWY_EXPORT(relu);
HWY_EXPORT(relu_backward);
HWY_EXPORT(column_max);
HWY_EXPORT(column_exp_sum);
HWY_EXPORT(column_sigmoid);
HWY_EXPORT(scale_columns);
HWY_EXPORT(positions_above);
HWY_EXPORT(adam);
HWY_EXPORT(adagrad);
HWY_EXPORT(sgd_momentum);

namespace {

const char* target_name(int64_t target) { return hwy::TargetName(target); }

}  // namespace

void gemm(const Gemm& args) { HWY_DYNAMIC_DISPATCH(gemm)(args); }
void weighted_row_sum(const uint32_t* indices, const float* weights, size_t count, const float* rows,
                      size_t stride, const float* init, float* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(weighted_row_sum)(indices, weights, count, rows, stride, init, out, n);
}
float dot(const float* x, const float* y, size_t n) { return HWY_DYNAMIC_DISPATCH(dot)(x, y, n); }
void add(const float* x, float* y, size_t n) { HWY_DYNAMIC_DISPATCH(add)(x, y, n); }
void axpy(float a, const float* x, float* y, size_t n) { HWY_DYNAMIC_DISPATCH(axpy)(a, x, y, n); }
void scale(float a, float* x, size_t n) { HWY_DYNAMIC_DISPATCH(scale)(a, x, n); }
float sum(const float* x, size_t n) { return HWY_DYNAMIC_DISPATCH(sum)(x, n); }
float sum_squares(const float* x, size_t n) { return dot(x, x, n); }
void relu(float* x, size_t n) { HWY_DYNAMIC_DISPATCH(relu)(x, n); }
void relu_backward(const float* activation, float* gradient, size_t n) {
  HWY_DYNAMIC_DISPATCH(relu_backward)(activation, gradient, n);
}
void column_max(const float* logits, size_t rows, size_t stride, float* maximum, size_t n) {
  HWY_DYNAMIC_DISPATCH(column_max)(logits, rows, stride, maximum, n);
}
void column_exp_sum(float* logits, size_t rows, size_t stride, const float* maximum, float* sums, size_t n) {
  HWY_DYNAMIC_DISPATCH(column_exp_sum)(logits, rows, stride, maximum, sums, n);
}
void column_sigmoid(float* logits, size_t rows, size_t stride, float* sums, size_t n) {
  HWY_DYNAMIC_DISPATCH(column_sigmoid)(logits, rows, stride, sums, n);
}
void scale_columns(float* x, size_t rows, size_t stride, const float* factor, size_t n) {
  HWY_DYNAMIC_DISPATCH(scale_columns)(x, rows, stride, factor, n);
}
size_t positions_above(const float* x, const float* threshold, size_t n, uint32_t* positions) {
  return HWY_DYNAMIC_DISPATCH(positions_above)(x, threshold, n, positions);
}
void adam(const AdamArgs& args, const float* gradient, float* weights, float* first, float* second,
          size_t n) {
  HWY_DYNAMIC_DISPATCH(adam)(args, gradient, weights, first, second, n);
}
void adagrad(float learning_rate, float epsilon, const float* gradient, float* weights, float* square_sum,
             size_t n) {
  HWY_DYNAMIC_DISPATCH(adagrad)(learning_rate, epsilon, gradient, weights, square_sum, n);
}
void sgd_momentum(float learning_rate, float momentum, const float* gradient, float* weights, float* velocity,
                  size_t n) {
  HWY_DYNAMIC_DISPATCH(sgd_momentum)(learning_rate, momentum, gradient, weights, velocity, n);
}

std::vector<std::string> available_instruction_sets() {
  const int64_t in_use = hwy::SupportedTargets();
  hwy::SetSupportedTargetsForTest(0);  // what use_instruction_set forced does not count
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) names.emplace_back(target_name(target));
  hwy::SetSupportedTargetsForTest(in_use);
  return names;
}

std::string instruction_set() {
  return target_name(hwy::SupportedAndGeneratedTargets().front());  // best first
}

void use_instruction_set_from_environment() {
  if (const char* name = std::getenv("MODELET_SIMD")) use_instruction_set(name);
}

void use_instruction_set(const std::string& name) {
  hwy::SetSupportedTargetsForTest(0);
  std::string known;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name == target_name(target)) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      return;
    }
    known += std::string(known.empty() ? "" : ", ") + target_name(target);
  }
  throw UsageError("instruction set '" + name + "' is not available on this machine; there are " + known);
}

}  // namespace modelet::shard::kernels
#endif  // HWY_ONCE
