// Products of bf16 pairs on matrix tiles (Intel AMX). A tile has 16 rows of 64 bytes: 16 x 16 sums in fp32, or 16
// rows of 16 pairs along k. One instruction multiplies two tiles of pairs and adds the result to a tile of sums.
//
// The layouts are those of gemm.h: pairs of B lie as the instruction reads them, and so do those of A, unless A is
// transposed; its blocks are then turned first. Any thread; touches nothing but its arguments.
#pragma once

#include "shard/kernels/gemm.h"

namespace modelet::shard::kernels {

// C as gemm(const PairGemm&) computes it. gemm_on_tiles() needs machine_has_tiles() (simd/tiles.h). The stand-in runs the same
// loops on tiles in plain C++, on every machine: it is for tests.
void gemm_on_tiles(const PairGemm& args);
void gemm_on_stand_in_tiles(const PairGemm& args);

}  // namespace modelet::shard::kernels
