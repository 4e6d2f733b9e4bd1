// GradientEncoder: how gradients travel. They may be rounded by chance. The draws follow from the place of a
// block in the run, not from the division into micro-batches, nor from time or threads; and each replica
// draws for itself. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/array/matrix.h"
#include "comm/messaging/block.h"
#include "node_agent/step/exchange/codec_choice.h"

namespace modelet::agent {

// The step and the samples: Batch::first differs between replicas.
struct StepPlace {
  uint64_t step = 0, first_sample = 0;
};

// The exchange and the matrix of a block. Draws depend on these numbers, so they must never change.
struct GradientKind {
  uint64_t exchange, matrix;
};
inline constexpr GradientKind kOutputPositive{192, 0}, kOutputNegative{192, 1};
// One for each hidden layer, counted from the last one down.
constexpr GradientKind hidden_gradient(size_t from_top) { return {200 + from_top, 2}; }

class GradientEncoder {
 public:
  // `seed`: of the run. `codecs` must outlive it.
  GradientEncoder(uint64_t seed, int rank, CodecChoice& codecs) : seed_(seed), rank_(rank), codecs_(codecs) {}

  // A block for rank `to`. `first_row`, `first_column`: its place in the whole matrix.
  comm::OutBlock block(ConstMatrix values, StepPlace place, GradientKind kind, size_t first_row,
                       size_t first_column, int to);

 private:
  const uint64_t seed_;
  const int rank_;
  CodecChoice& codecs_;
};

}  // namespace modelet::agent
