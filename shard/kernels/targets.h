// What kernel files need to know before they include Highway.
#pragma once

#include "base/simd_targets.h"

namespace modelet::shard::kernels {

// Whether AVX512-BF16, which the machine must have, multiplies faster than AVX-512 does in floats: cores of
// AMD (Zen 4) multiply pairs at twice that rate, those of Intel without AMX at half of it. Takes 0.1 ms.
bool dot_pairs_pay();

}  // namespace modelet::shard::kernels
