// Which instruction sets the kernels are compiled for. SSE is left out (every machine worth renting has
// AVX2), and SVE, whose vectors have no fixed size and cannot be held in the arrays that the GEMM keeps its
// accumulators in; NEON serves ARM. Included before Highway by every kernel file: all must agree.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

namespace modelet::shard::kernels {

// Whether to use AVX512-BF16, which Highway has no target for: it is AVX3 (Highway's word for AVX-512) and
// one instruction more.
bool dot_pairs_in_use();

}  // namespace modelet::shard::kernels
