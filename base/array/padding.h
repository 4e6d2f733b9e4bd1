// Padding: widths of layers, and batches where samples are columns, are multiples of kVectorFloats.
#pragma once

#include <cstddef>

namespace modelet {

// Floats in the widest vector of any instruction set, and in a cache line. With this padding kernels have no
// partial vectors, and no two nodes write to one line.
inline constexpr size_t kVectorFloats = 16;

constexpr size_t padded(size_t n) { return (n + kVectorFloats - 1) / kVectorFloats * kVectorFloats; }

}  // namespace modelet
