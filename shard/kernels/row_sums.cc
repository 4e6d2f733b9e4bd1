// Weighted sums of rows.
#include "shard/kernels/row_sums.h"

#include <algorithm>

#include "base/array/aligned.h"
#include "base/array/prefetch.h"
#include "base/array/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/row_sums.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>

#include "shard/kernels/simd/vector-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace modelet::shard::kernels::HWY_NAMESPACE {

// kVectors wide. Narrow panels add up kChains rows at a time: a single chain of additions would wait for each
// one's latency.
template <size_t kVectors, size_t kChains, class T>
HWY_INLINE void row_sum_panel(const uint32_t* HWY_RESTRICT indices, const float* HWY_RESTRICT weights,
                              size_t count, const T* HWY_RESTRICT rows, size_t stride,
                              const T* HWY_RESTRICT init, float* HWY_RESTRICT out, size_t more) {
  // Rows are far apart, so they are fetched before they are needed, narrow ones earlier.
  constexpr size_t kAhead = std::clamp<size_t>(64 / cache_lines(kVectors * kLanes * sizeof(T)), 8, 16);
  V acc[kChains][kVectors];
  HWY_UNROLL(4)
  for (size_t chain = 0; chain < kChains; ++chain) {
    HWY_UNROLL(8)
    for (size_t j = 0; j < kVectors; ++j)
      acc[chain][j] = chain == 0 && init != nullptr ? load(d, init + j * kLanes) : hn::Zero(d);
  }
  const auto add_row = [&](size_t i, V* HWY_RESTRICT sum) HWY_ATTR {
    if (i + kAhead < count + more) {
      const T* ahead = rows + indices[i + kAhead] * stride;
      HWY_UNROLL(8)
      for (size_t j = 0; j < kVectors * kLanes; j += kCacheLine / sizeof(T)) prefetch_line(ahead + j);
    }
    const T* row = rows + indices[i] * stride;
    const V weight = hn::Set(d, weights[i]);
    HWY_UNROLL(8)
    for (size_t j = 0; j < kVectors; ++j) sum[j] = hn::MulAdd(weight, load(d, row + j * kLanes), sum[j]);
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

template <class T>
HWY_INLINE void row_sum(const uint32_t* indices, const float* weights, size_t count, const T* rows,
                        size_t stride, const T* init, float* out, size_t n, size_t more) {
  size_t c = 0;
  const auto at = [&](size_t offset) { return init != nullptr ? init + offset : nullptr; };
  for (; c + 8 * kLanes <= n; c += 8 * kLanes)
    row_sum_panel<8, 1>(indices, weights, count, rows + c, stride, at(c), out + c, more);
  for (; c + 4 * kLanes <= n; c += 4 * kLanes)
    row_sum_panel<4, 2>(indices, weights, count, rows + c, stride, at(c), out + c, more);
  for (; c + 2 * kLanes <= n; c += 2 * kLanes)
    row_sum_panel<2, 4>(indices, weights, count, rows + c, stride, at(c), out + c, more);
  for (; c < n; c += kLanes)
    row_sum_panel<1, 4>(indices, weights, count, rows + c, stride, at(c), out + c, more);
}

void row_sum_fp32(const uint32_t* indices, const float* weights, size_t count, const float* rows,
                  size_t stride, const float* init, float* out, size_t n, size_t more) {
  row_sum(indices, weights, count, rows, stride, init, out, n, more);
}
void row_sum_bf16(const uint32_t* indices, const float* weights, size_t count, const Bf16* rows,
                  size_t stride, const Bf16* init, float* out, size_t n, size_t more) {
  row_sum(indices, weights, count, rows, stride, init, out, n, more);
}

void row_sums(const uint64_t* offsets, size_t sums, const uint32_t* indices, const float* weights,
              const float* rows, size_t stride, float* out, size_t n) {
  const float* const no_init = nullptr;
  for (size_t s = 0; s < sums; ++s)
    row_sum(indices + offsets[s], weights + offsets[s], offsets[s + 1] - offsets[s], rows, stride, no_init,
            out + s * n, n, 0);
}

}  // namespace modelet::shard::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace modelet::shard::kernels {

HWY_EXPORT(row_sum_fp32);
HWY_EXPORT(row_sum_bf16);
HWY_EXPORT(row_sums);

void weighted_row_sum(const uint32_t* indices, const float* weights, size_t count, const float* rows,
                      size_t stride, const float* init, float* out, size_t n, size_t more) {
  HWY_DYNAMIC_DISPATCH(row_sum_fp32)(indices, weights, count, rows, stride, init, out, n, more);
}
void weighted_row_sum(const uint32_t* indices, const float* weights, size_t count, const Bf16* rows,
                      size_t stride, const Bf16* init, float* out, size_t n, size_t more) {
  HWY_DYNAMIC_DISPATCH(row_sum_bf16)(indices, weights, count, rows, stride, init, out, n, more);
}
void weighted_row_sums(const uint64_t* offsets, size_t sums, const uint32_t* indices, const float* weights,
                       const float* rows, size_t stride, float* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(row_sums)(offsets, sums, indices, weights, rows, stride, out, n);
}

}  // namespace modelet::shard::kernels
#endif  // HWY_ONCE
