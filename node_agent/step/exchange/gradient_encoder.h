// GradientEncoder: makes the blocks in which gradients travel. They may be rounded stochastically. The
// random bits follow from the place of a block in the run, not from the division into micro-batches, nor
// from time or threads. Each replica has its own. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/array/matrix.h"
#include "comm/codec/codec.h"
#include "comm/messaging/block.h"

namespace modelet::agent {

// The step and the first sample of its batch. Batch::first differs between replicas.
struct StepPlace {
  uint64_t step = 0, first_sample = 0;
};

// The exchange and the matrix of a block. The random bits depend on these numbers, so they must never
// change.
struct GradientKind {
  uint64_t exchange, matrix;
};
inline constexpr GradientKind kOutputPositive{192, 0}, kOutputNegative{192, 1};
// One kind for each hidden layer, counted from the last layer down.
constexpr GradientKind hidden_gradient(size_t from_top) { return {200 + from_top, 2}; }

class GradientEncoder {
 public:
  // `seed`: the run's. `codec` must outlive this object.
  GradientEncoder(uint64_t seed, int rank, const comm::Codec& codec) : seed_(seed), rank_(rank), codec_(codec) {}

  // Makes a block. `first_row` and `first_column` are its place in the whole matrix.
  comm::OutBlock block(ConstMatrix values, StepPlace place, GradientKind kind, size_t first_row,
                       size_t first_column) const;

 private:
  const uint64_t seed_;
  const int rank_;
  const comm::Codec& codec_;
};

}  // namespace modelet::agent
