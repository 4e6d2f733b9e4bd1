// The one instruction of AVX512-BF16, which multiplies pairs of bf16 and adds them up in fp32. Any thread.
#pragma once

namespace modelet::shard::kernels {

bool machine_has_dot_pairs();

// Whether it multiplies faster than AVX-512 does in floats, on a machine that has it: AMD's cores (Zen 4)
// multiply pairs at twice that rate, Intel's without AMX at half of it. Measured in less than 0.1 ms.
bool dot_pairs_pay();

}  // namespace modelet::shard::kernels
