// What kernel files need to know before they include Highway.
#pragma once

#include "base/simd_targets.h"

namespace modelet::shard::kernels {

// Whether to use AVX512-BF16, which Highway has no target for: it is AVX3 (Highway's word for AVX-512) and
// one instruction more.
bool dot_pairs_in_use();

}  // namespace modelet::shard::kernels
