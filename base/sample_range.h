// SampleRange: samples of a batch that are worked on, and travel, together. A batch is cut into several so
// that the wire works while the cores work (micro-batches).
#pragma once

#include <cstddef>
#include <vector>

#include "base/padding.h"

namespace modelet {

// Samples [begin, end). `begin` is a multiple of kVectorFloats; so is `end`, or it is the end of the batch.
struct SampleRange {
  size_t begin = 0, end = 0;

  size_t size() const { return end - begin; }
  // How many columns of a [.., padded batch] matrix they take.
  size_t columns() const { return padded(size()); }
  bool operator==(const SampleRange&) const = default;
};

inline constexpr size_t kMaxMicroBatches = 8;
// Where a run chooses the number by itself, it tries 1 to so many.
inline constexpr size_t kTriedMicroBatches = 4;

// Fills `ranges` with at most `count` pieces of a batch. Each takes half of what is left, the last two are
// alike: nothing is left to compute while the last one travels, so it is small.
void split_batch(size_t samples, size_t count, std::vector<SampleRange>& ranges);

}  // namespace modelet
