// The instruction sets that vector code is compiled for. SSE is left out, because every machine worth renting
// has AVX2; so is SVE, whose vectors have no fixed size and cannot be held in arrays (NEON serves ARM). Every
// file with vector code includes this header before Highway, so that all are compiled for the same
// instruction sets.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
