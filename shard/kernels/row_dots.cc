// Dot products of one vector with rows that are scattered or follow each other: one query against a part of
// the output layer. Memory is the limit, so rows are requested well before they are used.
#include "shard/kernels/row_dots.h"

#include <algorithm>

#include "base/array/prefetch.h"
#include "base/array/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/row_dots.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>

#include "shard/kernels/simd/vector-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace modelet::shard::kernels::HWY_NAMESPACE {

// Rows computed together: enough independent sums to hide the latency of an addition.
constexpr size_t kRows = 4;
constexpr size_t kRowsAhead = 12;  // asked for ahead; about as many cache lines as a core has in flight
constexpr size_t kLineBytes = 64;

template <class RowOf>
HWY_INLINE void dots(const RowOf& row_of, bool prefetch, size_t count, const float* HWY_RESTRICT x, size_t n,
                     float* HWY_RESTRICT out) {
  const size_t line = kLineBytes / sizeof(*row_of(0));
  if (prefetch)
    for (size_t r = 0; r < std::min(count, kRowsAhead); ++r)
      for (size_t i = 0; i < n; i += line) prefetch_line(row_of(r) + i);
  size_t r = 0;
  for (; r + kRows <= count; r += kRows) {
    if (prefetch)
      for (size_t ahead = r + kRowsAhead; ahead < std::min(count, r + kRowsAhead + kRows); ++ahead)
        for (size_t i = 0; i < n; i += line) prefetch_line(row_of(ahead) + i);
    const auto *a = row_of(r), *b = row_of(r + 1), *c = row_of(r + 2), *e = row_of(r + 3);
    auto sum_a = hn::Zero(d), sum_b = sum_a, sum_c = sum_a, sum_e = sum_a;
    for (size_t i = 0; i < n; i += kLanes) {
      const auto v = hn::LoadU(d, x + i);
      sum_a = hn::MulAdd(v, load(d, a + i), sum_a);
      sum_b = hn::MulAdd(v, load(d, b + i), sum_b);
      sum_c = hn::MulAdd(v, load(d, c + i), sum_c);
      sum_e = hn::MulAdd(v, load(d, e + i), sum_e);
    }
    out[r] = hn::GetLane(hn::SumOfLanes(d, sum_a));
    out[r + 1] = hn::GetLane(hn::SumOfLanes(d, sum_b));
    out[r + 2] = hn::GetLane(hn::SumOfLanes(d, sum_c));
    out[r + 3] = hn::GetLane(hn::SumOfLanes(d, sum_e));
  }
  for (; r < count; ++r) {
    const auto* row = row_of(r);
    auto sum = hn::Zero(d);
    for (size_t i = 0; i < n; i += kLanes) sum = hn::MulAdd(hn::LoadU(d, x + i), load(d, row + i), sum);
    out[r] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

template <class T>
HWY_INLINE void dots_of(const T* rows, size_t stride, size_t count, const float* x, size_t n, float* out) {
  dots([=](size_t r) { return rows + r * stride; }, false, count, x, n, out);
}

void row_dots(const float* rows, size_t stride, size_t count, const float* x, size_t n, float* out) {
  dots_of(rows, stride, count, x, n, out);
}

void row_dots_bf16(const Bf16* rows, size_t stride, size_t count, const float* x, size_t n, float* out) {
  dots_of(rows, stride, count, x, n, out);
}

template <class T>
HWY_INLINE void scattered_dots_of(const T* rows, size_t stride, const uint32_t* indices, size_t count,
                                  const float* x, size_t n, float* out) {
  dots([=](size_t r) { return rows + indices[r] * stride; }, true, count, x, n, out);
}

void scattered_row_dots(const float* rows, size_t stride, const uint32_t* indices, size_t count,
                        const float* x, size_t n, float* out) {
  scattered_dots_of(rows, stride, indices, count, x, n, out);
}

void scattered_row_dots_bf16(const Bf16* rows, size_t stride, const uint32_t* indices, size_t count,
                             const float* x, size_t n, float* out) {
  scattered_dots_of(rows, stride, indices, count, x, n, out);
}

}  // namespace modelet::shard::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace modelet::shard::kernels {

HWY_EXPORT(row_dots);
HWY_EXPORT(row_dots_bf16);
HWY_EXPORT(scattered_row_dots);
HWY_EXPORT(scattered_row_dots_bf16);

void row_dots(const float* rows, size_t stride, size_t count, const float* x, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(row_dots)(rows, stride, count, x, n, out);
}
void row_dots(const Bf16* rows, size_t stride, size_t count, const float* x, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(row_dots_bf16)(rows, stride, count, x, n, out);
}
void scattered_row_dots(const float* rows, size_t stride, const uint32_t* indices, size_t count,
                        const float* x, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(scattered_row_dots)(rows, stride, indices, count, x, n, out);
}
void scattered_row_dots(const Bf16* rows, size_t stride, const uint32_t* indices, size_t count,
                        const float* x, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(scattered_row_dots_bf16)(rows, stride, indices, count, x, n, out);
}

}  // namespace modelet::shard::kernels
#endif
