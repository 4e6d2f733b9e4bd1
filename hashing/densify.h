// Optimal densification (Shrivastava: "Optimal Densification for Fast and Accurate Minwise Hashing", ICML
// 2017). A hash that distributes a sparse vector over bins leaves some bins empty. Each empty bin copies a
// filled one, which it finds with a seeded random sequence of its own. Two vectors then agree in the empty
// bin if they agree in the copied one.
#pragma once

#include <cstdint>
#include <span>

namespace modelet::hashing {

inline constexpr uint32_t kEmptyBin = 0xffffffff;
inline constexpr uint32_t kMaxBinValue = 0x7fffffff;  // values above mark empty and copied bins

// Replaces each kEmptyBin in `bins`, whose other values are at most kMaxBinValue. If all bins are empty, all
// become 0.
void densify(std::span<uint32_t> bins, uint64_t seed);

}  // namespace modelet::hashing
