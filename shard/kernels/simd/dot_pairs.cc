#include "shard/kernels/simd/dot_pairs.h"

#include <algorithm>
#include <cmath>

#include "base/array/simd_targets.h"
#include "base/system/clock.h"
// Highway comes after simd_targets.h, which says what it compiles for.
#include <hwy/base.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace modelet::shard::kernels {

#if defined(__x86_64__)
namespace {

// Seconds for `rounds` times kChains instructions that do not wait for each other.
template <bool kPairs>
__attribute__((target("avx512f"))) double seconds(int rounds) {
  constexpr int kChains = 12;  // enough to hide the latency
  __m512 chain[kChains];
  const __m512 zero = _mm512_setzero_ps();
  HWY_UNROLL(12)
  for (__m512& sum : chain) sum = zero;
  const Stopwatch watch;
  for (int round = 0; round < rounds; ++round) {
    HWY_UNROLL(12)
    for (__m512& sum : chain)
      if constexpr (kPairs)
        asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sum) : "v"(zero));
      else
        asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sum) : "v"(zero));
  }
  return watch.seconds();
}

}  // namespace

bool machine_has_dot_pairs() { return __builtin_cpu_supports("avx512bf16") != 0; }

bool dot_pairs_pay() {
  constexpr int kRounds = 256, kRepeats = 8;  // a microsecond or two each; the shortest counts
  constexpr double kWorthwhile = 0.75;        // far from what either make of cores takes: 0.5 and 2
  double in_floats = HUGE_VAL, in_pairs = HUGE_VAL;
  for (int i = 0; i < kRepeats; ++i) {
    in_floats = std::min(in_floats, seconds<false>(2 * kRounds));  // as many products
    in_pairs = std::min(in_pairs, seconds<true>(kRounds));
  }
  return in_pairs < kWorthwhile * in_floats;
}
#else
bool machine_has_dot_pairs() { return false; }
bool dot_pairs_pay() { return false; }
#endif

}  // namespace modelet::shard::kernels
