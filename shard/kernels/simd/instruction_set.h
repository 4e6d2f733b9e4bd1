// The instruction set that the kernels use. They are written once with Highway and compiled for several; the
// best one that the machine has is chosen at run time. Global, because kernels are plain functions: choose
// before the first one runs; reading is thread-safe.
#pragma once

#include <string>
#include <vector>

namespace modelet::shard::kernels {

// Whether the instruction set in use multiplies pairs of bf16 by instructions of its own: one pair at a time
// (AVX512-BF16), or whole tiles (AMX). If neither, products of pairs take longer than products of floats.
bool dot_pairs_in_use();
bool tiles_in_use();
inline bool pairs_pay() { return tiles_in_use() || dot_pairs_in_use(); }
// Name of the instruction set in use, and those this machine could use, the fastest first ("AMX", "AVX3_BF16",
// "AVX3", "AVX2", "EMU128", ...; AVX3 is AVX-512).
std::string instruction_set();
std::vector<std::string> available_instruction_sets();
// Forces one of them (tests, comparisons). UsageError if there is no such name.
void use_instruction_set(const std::string& name);
// The same with the value of the environment variable MODELET_SIMD, if it is set. Programs call it first.
void use_instruction_set_from_environment();

}  // namespace modelet::shard::kernels
