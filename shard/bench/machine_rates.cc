#include "shard/bench/machine_rates.h"

#include <algorithm>
#include <vector>

#include "base/array/aligned.h"
#include "base/array/bf16.h"
#include "base/system/clock.h"
#include "shard/kernels/gemm.h"
#include "shard/kernels/simd/instruction_set.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/bench/machine_rates.cc"
#include "base/array/simd_targets.h"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace modelet::shard::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr D d;
constexpr size_t kLanes = HWY_LANES(float);
constexpr size_t kChains = 12;  // enough to hide a multiply-add's latency, few enough for 16 registers

// Runs `rounds` times kChains multiply-adds that do not wait for each other. Returns something that depends
// on all of them.
float multiply_add(size_t rounds, float start) {
  const V factor = hn::Set(d, 0.999f), term = hn::Set(d, 0.001f);
  V chain[kChains];
  HWY_UNROLL(12)
  for (size_t i = 0; i < kChains; ++i) chain[i] = hn::Set(d, start + static_cast<float>(i));
  for (size_t r = 0; r < rounds; ++r) {
    HWY_UNROLL(12)
    for (size_t i = 0; i < kChains; ++i) chain[i] = hn::MulAdd(chain[i], factor, term);
  }
  V total = hn::Zero(d);
  HWY_UNROLL(12)
  for (size_t i = 0; i < kChains; ++i) total = hn::Add(total, chain[i]);
  return hn::GetLane(hn::SumOfLanes(d, total));
}

#if HWY_TARGET == HWY_AVX3
// The same with pairs of bf16: twice the operations. One line of assembly as in shard/kernels/gemm.cc.
float multiply_add_pairs(size_t rounds, float start) {
  const V factor = hn::Set(d, start);
  V chain[kChains];
  HWY_UNROLL(12)
  for (size_t i = 0; i < kChains; ++i) chain[i] = hn::Set(d, start + static_cast<float>(i));
  for (size_t r = 0; r < rounds; ++r) {
    HWY_UNROLL(12)
    for (size_t i = 0; i < kChains; ++i)
      asm volatile("vdpbf16ps %1, %1, %0" : "+v"(chain[i].raw) : "v"(factor.raw));
  }
  V total = hn::Zero(d);
  HWY_UNROLL(12)
  for (size_t i = 0; i < kChains; ++i) total = hn::Add(total, chain[i]);
  return hn::GetLane(hn::SumOfLanes(d, total));
}
#else
float multiply_add_pairs(size_t rounds, float start) { return multiply_add(rounds, start); }
#endif

size_t operations_of_round() { return kChains * 2 * kLanes; }

// n: multiple of kStreamVectors * kLanes, here and below.
constexpr size_t kStreamVectors = 8;

float read(const float* x, size_t n) {
  V sums[kStreamVectors];
  HWY_UNROLL(8)
  for (size_t j = 0; j < kStreamVectors; ++j) sums[j] = hn::Zero(d);
  for (size_t i = 0; i < n; i += kStreamVectors * kLanes) {
    HWY_UNROLL(8)
    for (size_t j = 0; j < kStreamVectors; ++j) sums[j] = hn::Add(sums[j], hn::Load(d, x + i + j * kLanes));
  }
  V total = hn::Zero(d);
  HWY_UNROLL(8)
  for (size_t j = 0; j < kStreamVectors; ++j) total = hn::Add(total, sums[j]);
  return hn::GetLane(hn::SumOfLanes(d, total));
}

void copy(const float* from, float* to, size_t n) {
  for (size_t i = 0; i < n; i += kStreamVectors * kLanes) {
    HWY_UNROLL(8)
    for (size_t j = 0; j < kStreamVectors; ++j)
      hn::Stream(hn::Load(d, from + i + j * kLanes), d, to + i + j * kLanes);
  }
}

void update(float* x, size_t n) {
  const V factor = hn::Set(d, 0.999f);
  for (size_t i = 0; i < n; i += kStreamVectors * kLanes) {
    HWY_UNROLL(8)
    for (size_t j = 0; j < kStreamVectors; ++j)
      hn::Store(hn::Mul(factor, hn::Load(d, x + i + j * kLanes)), d, x + i + j * kLanes);
  }
}

}  // namespace modelet::shard::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace modelet::shard::bench {

HWY_EXPORT(multiply_add);
HWY_EXPORT(multiply_add_pairs);
HWY_EXPORT(operations_of_round);
HWY_EXPORT(read);
HWY_EXPORT(copy);
HWY_EXPORT(update);

namespace {

// kPiece: floats of a parallel piece, long enough to reach the speed of a stream. A call has many pieces, so
// that all threads end at about the same time. Calls are short, and each continues where the last one ended.
constexpr size_t kPiece = size_t{1} << 15, kCall = 64 * kPiece;

}  // namespace

double calls_per_second(double seconds, const std::function<void()>& work) {
  constexpr double kWindow = 0.002;  // seconds: shorter than the time slice that others get
  work();                            // touches memory, fills caches, wakes threads
  double best = 0;
  const Stopwatch all;
  do {
    const Stopwatch watch;
    double calls = 0, passed = 0;
    do {
      work();
      ++calls;
      passed = watch.seconds();
    } while (passed < kWindow);
    best = std::max(best, calls / passed);
  } while (all.seconds() < seconds);
  return best;
}

namespace {

// Products on tiles wait for their operands more than for the multiplication. So their rate is that of a product
// whose operands are in the second-level cache, as those of a training step are.
double tile_flops(ThreadPool& pool, double seconds) {
  constexpr size_t kRows = 96, kColumns = 256, kPairs = 128, kPieces = 16;
  const AlignedVector<Bf16> a(kRows * 2 * kPairs), b(kColumns * 2 * kPairs);
  std::vector<AlignedVector<float>> c(kPieces, AlignedVector<float>(kRows * kColumns));
  const double calls = calls_per_second(seconds, [&] {
    pool.for_pieces(kPieces, 1, [&](size_t i, size_t) {
      kernels::gemm({.m = kRows,
                     .n = kColumns,
                     .k = kPairs,
                     .a = a.data(),
                     .a_row = kPairs,
                     .a_col = 1,
                     .b = b.data(),
                     .b_row = kColumns,
                     .c = c[i].data(),
                     .c_row = kColumns});
    });
  });
  return calls * double{kPieces} * 2 * kRows * kColumns * 2 * kPairs;
}

}  // namespace

double peak_flops(ThreadPool& pool, Precision precision, double seconds) {
  if (precision == Precision::kBf16 && kernels::tiles_in_use()) return tile_flops(pool, seconds);
  constexpr size_t kRounds = 2000, kPieces = 64;
  const bool pairs = precision == Precision::kBf16 && kernels::dot_pairs_in_use();
  AlignedVector<float> results(kPieces);  // kept, so that no compiler finds the work useless
  const double calls = calls_per_second(seconds, [&] {
    pool.for_pieces(kPieces, 1, [&](size_t i, size_t) {
      results[i] = pairs ? HWY_DYNAMIC_DISPATCH(multiply_add_pairs)(kRounds, 0)
                         : HWY_DYNAMIC_DISPATCH(multiply_add)(kRounds, results[i]);
    });
  });
  const size_t operations = HWY_DYNAMIC_DISPATCH(operations_of_round)() * (pairs ? 2 : 1);
  return calls * static_cast<double>(operations * kRounds * kPieces);
}

double stream_bytes(ThreadPool& pool, Stream stream, size_t bytes, double seconds) {
  const size_t arrays = stream == Stream::kCopy ? 2 : 1;
  const size_t calls_a_pass = std::max<size_t>(1, bytes / sizeof(float) / arrays / kCall);
  AlignedVector<float> x(calls_a_pass * kCall, 1.0f), y(arrays == 2 ? x.size() : 0), sums(kCall / kPiece);
  size_t next = 0;  // the next call of the pass over the memory
  const double calls = calls_per_second(seconds, [&] {
    float* const from = &x[next * kCall];
    float* const to = y.empty() ? nullptr : &y[next * kCall];
    next = (next + 1) % calls_a_pass;
    pool.for_pieces(kCall, kPiece, [&](size_t begin, size_t) {
      if (stream == Stream::kRead) sums[begin / kPiece] = HWY_DYNAMIC_DISPATCH(read)(from + begin, kPiece);
      if (stream == Stream::kCopy) HWY_DYNAMIC_DISPATCH(copy)(from + begin, to + begin, kPiece);
      if (stream == Stream::kUpdate) HWY_DYNAMIC_DISPATCH(update)(from + begin, kPiece);
    });
  });
  const double directions = stream == Stream::kRead ? 1 : 2;
  return calls * directions * static_cast<double>(kCall * sizeof(float));
}

}  // namespace modelet::shard::bench
#endif  // HWY_ONCE
