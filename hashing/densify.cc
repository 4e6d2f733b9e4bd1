#include "hashing/densify.h"

#include <algorithm>

#include "base/rng.h"

namespace modelet::hashing {

void densify(std::span<uint32_t> bins, uint64_t seed) {
  constexpr uint32_t kCopied = kMaxBinValue + 1;
  const auto is_filled = [](uint32_t value) { return value <= kMaxBinValue; };
  if (std::none_of(bins.begin(), bins.end(), is_filled)) {
    std::fill(bins.begin(), bins.end(), 0);
    return;
  }
  // Copies are marked until the end: only bins that were filled from the start may be copied.
  for (size_t b = 0; b < bins.size(); ++b) {
    if (bins[b] != kEmptyBin) continue;
    Rng probes(seed, {b});
    size_t donor = b;
    while (!is_filled(bins[donor])) donor = probes.below(static_cast<uint32_t>(bins.size()));
    bins[b] = bins[donor] | kCopied;
  }
  for (uint32_t& value : bins) value &= kMaxBinValue;
}

}  // namespace modelet::hashing
