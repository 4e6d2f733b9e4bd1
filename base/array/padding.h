// Padding: the widths of layers are multiples of kVectorFloats, and so is a batch whose samples are columns.
#pragma once

#include <cstddef>

namespace modelet {

// Floats in the widest vector of any instruction set, and in a cache line. With this padding kernels have no
// partial vectors, and columns of different nodes share no cache line.
inline constexpr size_t kVectorFloats = 16;

constexpr size_t padded(size_t n) { return (n + kVectorFloats - 1) / kVectorFloats * kVectorFloats; }

}  // namespace modelet
