// Optimal densification (Shrivastava: "Optimal Densification for Fast and Accurate Minwise Hashing", ICML
// 2017). Hashes that split a sparse vector over bins leave some bins empty. An empty bin copies a bin that
// was filled, found by a seeded random sequence of probes of its own, so two vectors agree there if they
// agree in the bin they copy.
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
