// Vectors, and columns of logits.
#include "shard/kernels/elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/array/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/elementwise.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>

#include "shard/kernels/simd/vector-inl.h"
// clang-format on

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace modelet::shard::kernels::HWY_NAMESPACE {

// ---- Vectors

template <class T>
HWY_INLINE float dot_with(const float* x, const T* y, size_t n) {
  V a = hn::Zero(d), b = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    a = hn::MulAdd(hn::LoadU(d, x + i), load(d, y + i), a);
    b = hn::MulAdd(hn::LoadU(d, x + i + kLanes), load(d, y + i + kLanes), b);
  }
  if (i < n) a = hn::MulAdd(hn::LoadU(d, x + i), load(d, y + i), a);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
}
float dot_fp32(const float* x, const float* y, size_t n) { return dot_with(x, y, n); }
float dot_bf16(const float* x, const Bf16* y, size_t n) { return dot_with(x, y, n); }

void add(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; i += kLanes)
    hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
}

template <class T>
HWY_INLINE void axpy_with(float a, const T* x, float* y, size_t n) {
  const V factor = hn::Set(d, a);
  for (size_t i = 0; i < n; i += kLanes)
    hn::StoreU(hn::MulAdd(factor, load(d, x + i), hn::LoadU(d, y + i)), d, y + i);
}
void axpy_fp32(float a, const float* x, float* y, size_t n) { axpy_with(a, x, y, n); }
void axpy_bf16(float a, const Bf16* x, float* y, size_t n) { axpy_with(a, x, y, n); }

void linear_combination(const float* factors, const float* const* vectors, size_t count, float* out,
                        size_t n) {
  for (size_t i = 0; i < n; i += kLanes) {
    V total = hn::Mul(hn::Set(d, factors[0]), hn::LoadU(d, vectors[0] + i));
    for (size_t v = 1; v < count; ++v)
      total = hn::MulAdd(hn::Set(d, factors[v]), hn::LoadU(d, vectors[v] + i), total);
    hn::StoreU(total, d, out + i);
  }
}

void scale(float a, float* x, size_t n) {
  const V factor = hn::Set(d, a);
  for (size_t i = 0; i < n; i += kLanes) hn::StoreU(hn::Mul(factor, hn::LoadU(d, x + i)), d, x + i);
}

void add_products(const float* x, const float* y, float* out, size_t n) {
  for (size_t i = 0; i < n; i += kLanes)
    hn::StoreU(hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), hn::LoadU(d, out + i)), d, out + i);
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

void column_max(const float* logits, size_t rows, size_t stride, float* maximum, size_t n) {
  for (size_t c = 0; c < n; c += kLanes) {
    V best = hn::Set(d, -std::numeric_limits<float>::infinity());
    for (size_t r = 0; r < rows; ++r) best = hn::Max(best, hn::LoadU(d, logits + r * stride + c));
    hn::StoreU(best, d, maximum + c);
  }
}

void column_best(const float* values, size_t rows, size_t stride, uint32_t first_row, float* best,
                 uint32_t* where, size_t n) {
  const Bits<D> indices;
  for (size_t c = 0; c < n; c += kLanes) {
    V largest = hn::LoadU(d, best + c);
    auto place = hn::LoadU(indices, where + c);
    for (size_t r = 0; r < rows; ++r) {
      const V value = hn::LoadU(d, values + r * stride + c);
      const auto better = hn::Gt(value, largest);
      place = hn::IfThenElse(hn::RebindMask(indices, better),
                             hn::Set(indices, first_row + static_cast<uint32_t>(r)), place);
      largest = hn::IfThenElse(better, value, largest);
    }
    hn::StoreU(largest, d, best + c);
    hn::StoreU(place, indices, where + c);
  }
}

void column_exp_sum(float* logits, size_t rows, size_t stride, const float* reference, float* sums,
                    size_t n) {
  // Highway's Exp wraps around far above the largest float.
  const V largest = hn::Set(d, kLargestExponent);
  for (size_t c = 0; c < n; c += kLanes) {
    const V best = hn::LoadU(d, reference + c);
    V total = hn::Zero(d);
    for (size_t r = 0; r < rows; ++r) {
      float* x = logits + r * stride + c;
      const V e = hn::Exp(d, hn::Min(hn::Sub(hn::LoadU(d, x), best), largest));
      total = hn::Add(total, e);
      hn::StoreU(e, d, x);
    }
    hn::StoreU(total, d, sums + c);
  }
}

// softplus(z) = max(z, 0) + log(1 + e^-|z|). The logarithms of kFactors rows, whose arguments lie in (1, 2],
// are computed as one logarithm of the product: a logarithm costs as much as everything else.
void column_sigmoid(float* logits, size_t rows, size_t stride, float* sums, size_t n) {
  constexpr size_t kFactors = 96;  // 2^96 is far from the largest float
  const V one = hn::Set(d, 1.0f);
  for (size_t c = 0; c < n; c += kLanes) {
    V total = hn::Zero(d);
    for (size_t first = 0; first < rows; first += kFactors) {
      V product = one;
      for (size_t r = first; r < std::min(rows, first + kFactors); ++r) {
        float* x = logits + r * stride + c;
        const V z = hn::LoadU(d, x);
        const V e = hn::Exp(d, hn::Neg(hn::Abs(z)));  // in (0, 1]: no overflow on either side
        const V factor = hn::Add(one, e);
        const V inverse = hn::Div(one, factor);
        const V p = hn::IfThenElse(hn::Lt(z, hn::Zero(d)), hn::Mul(e, inverse), inverse);
        product = hn::Mul(product, factor);
        total = hn::Add(total, hn::Max(z, hn::Zero(d)));
        hn::StoreU(p, d, x);
      }
      total = hn::Add(total, hn::Log(d, product));
    }
    hn::StoreU(total, d, sums + c);
  }
}

void scale_columns(const float* x, size_t rows, size_t stride, const float* factor, float* out, size_t n) {
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < n; c += kLanes) {
      const size_t at = r * stride + c;
      hn::StoreU(hn::Mul(hn::LoadU(d, x + at), hn::LoadU(d, factor + c)), d, out + at);
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

HWY_INLINE bool is_finite(float x) { return std::isfinite(x); }
HWY_INLINE bool is_finite(Bf16 x) { return std::isfinite(to_float(x)); }

template <class T>
HWY_INLINE size_t first_not_finite_of(const T* x, size_t n) {
  const Bits<D> bits;
  const auto exponent = hn::Set(bits, 0x7f800000u);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    if (!hn::AllFalse(bits, hn::Eq(hn::And(hn::BitCast(bits, load(d, x + i)), exponent), exponent))) break;
  while (i < n && is_finite(x[i])) ++i;
  return i;
}
size_t first_not_finite_fp32(const float* x, size_t n) { return first_not_finite_of(x, n); }
size_t first_not_finite_bf16(const Bf16* x, size_t n) { return first_not_finite_of(x, n); }

}  // namespace modelet::shard::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace modelet::shard::kernels {

HWY_EXPORT(dot_fp32);
HWY_EXPORT(dot_bf16);
HWY_EXPORT(add);
HWY_EXPORT(axpy_fp32);
HWY_EXPORT(axpy_bf16);
HWY_EXPORT(add_products);
HWY_EXPORT(linear_combination);
HWY_EXPORT(scale);
HWY_EXPORT(sum);
HWY_EXPORT(relu);
HWY_EXPORT(relu_backward);
HWY_EXPORT(column_max);
HWY_EXPORT(column_best);
HWY_EXPORT(column_exp_sum);
HWY_EXPORT(column_sigmoid);
HWY_EXPORT(scale_columns);
HWY_EXPORT(positions_above);
HWY_EXPORT(first_not_finite_fp32);
HWY_EXPORT(first_not_finite_bf16);

float dot(const float* x, const float* y, size_t n) { return HWY_DYNAMIC_DISPATCH(dot_fp32)(x, y, n); }
float dot(const float* x, const Bf16* y, size_t n) { return HWY_DYNAMIC_DISPATCH(dot_bf16)(x, y, n); }
void add(const float* x, float* y, size_t n) { HWY_DYNAMIC_DISPATCH(add)(x, y, n); }
void axpy(float a, const float* x, float* y, size_t n) { HWY_DYNAMIC_DISPATCH(axpy_fp32)(a, x, y, n); }
void axpy(float a, const Bf16* x, float* y, size_t n) { HWY_DYNAMIC_DISPATCH(axpy_bf16)(a, x, y, n); }
void add_products(const float* x, const float* y, float* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(add_products)(x, y, out, n);
}
void linear_combination(const float* factors, const float* const* vectors, size_t count, float* out,
                        size_t n) {
  HWY_DYNAMIC_DISPATCH(linear_combination)(factors, vectors, count, out, n);
}
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
void column_best(const float* values, size_t rows, size_t stride, uint32_t first_row, float* best,
                 uint32_t* where, size_t n) {
  HWY_DYNAMIC_DISPATCH(column_best)(values, rows, stride, first_row, best, where, n);
}
void column_exp_sum(float* logits, size_t rows, size_t stride, const float* maximum, float* sums, size_t n) {
  HWY_DYNAMIC_DISPATCH(column_exp_sum)(logits, rows, stride, maximum, sums, n);
}
void column_sigmoid(float* logits, size_t rows, size_t stride, float* sums, size_t n) {
  HWY_DYNAMIC_DISPATCH(column_sigmoid)(logits, rows, stride, sums, n);
}
void scale_columns(const float* x, size_t rows, size_t stride, const float* factor, float* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(scale_columns)(x, rows, stride, factor, out, n);
}
size_t positions_above(const float* x, const float* threshold, size_t n, uint32_t* positions) {
  return HWY_DYNAMIC_DISPATCH(positions_above)(x, threshold, n, positions);
}
size_t first_not_finite(const float* x, size_t n) {
  return HWY_DYNAMIC_DISPATCH(first_not_finite_fp32)(x, n);
}
size_t first_not_finite(const Bf16* x, size_t n) { return HWY_DYNAMIC_DISPATCH(first_not_finite_bf16)(x, n); }

}  // namespace modelet::shard::kernels
#endif  // HWY_ONCE
