// SampleRange: samples of a batch that are processed and sent together. A batch is divided into several
// ranges (micro-batches), so that one travels while the next is computed.
#pragma once

#include <cstddef>
#include <vector>

#include "base/array/padding.h"

namespace modelet {

// Samples [begin, end). `begin` is a multiple of kVectorFloats; so is `end`, or it is the end of the batch.
struct SampleRange {
  size_t begin = 0, end = 0;

  size_t size() const { return end - begin; }
  // Columns of a [.., padded batch] matrix that the range takes.
  size_t columns() const { return padded(size()); }
  bool operator==(const SampleRange&) const = default;
};

inline constexpr size_t kMaxMicroBatches = 8;
// Where a run chooses the number of micro-batches by itself, it tries 1 to this many.
inline constexpr size_t kTriedMicroBatches = 4;

// Fills `ranges` with at most `count` ranges of a batch. Each takes half of what is left, and the last two
// are equal: nothing is left to compute while the last one travels, so it is small.
void split_batch(size_t samples, size_t count, std::vector<SampleRange>& ranges);

}  // namespace modelet
