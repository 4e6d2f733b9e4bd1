// One step of an optimiser on rows of parameters that are updated lazily.
//
// Single-threaded; touches nothing but its arguments. Tests compare it with plain C++
// (tests/shard/kernels/reference.h). Widths named n are multiples of kVectorFloats unless said otherwise,
// arrays need no particular alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/array/bf16.h"

namespace modelet::shard::kernels {

// Rows of a lazily updated parameter matrix. In rows stored as bf16, values whose small changes have to add
// up (weights, sums of squares) are rounded stochastically, by random numbers that follow from `noise` and
// the place in the row; the others are rounded to the nearest.
template <class T>
struct RowUpdate {
  const float* gradient;
  T* row;              // the weights; the optimiser's vectors follow
  float rate;          // learning rate; Adam: divided by 1 - beta1^t
  float second_scale;  // Adam, RMSprop: 1 / (1 - beta2^t)
  uint32_t noise;
  // If not null: the beginning of another row with its vectors. It is requested while this row is updated, a
  // little in each turn of the loop: memory delivers most if the same amount is always under way.
  const void* ahead;
};
// n: length of each of a row's vectors, a multiple of kVectorFloats (in fp32 any number). `vector`: elements
// from the beginning of one vector to that of the next.
struct RowLayout {
  size_t n = 0, vector = 0;
};

// Vectors: first and second moment.
struct AdamArgs {
  float beta1, beta2, epsilon;
};
void adam(const AdamArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout);
void adam(const AdamArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout);
// Adam without the first moment (Tieleman, Hinton, 2012, with Adam's correction). Vector: second moment.
struct RmspropArgs {
  float beta2, epsilon;
};
void rmsprop(const RmspropArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout);
void rmsprop(const RmspropArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout);
// Vector: sum of squares.
struct AdagradArgs {
  float epsilon;
};
void adagrad(const AdagradArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout);
void adagrad(const AdagradArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout);
// Vector: velocity.
struct MomentumArgs {
  float momentum;
};
void sgd_momentum(const MomentumArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout);
void sgd_momentum(const MomentumArgs& args, std::span<const RowUpdate<Bf16>> rows, RowLayout layout);

}  // namespace modelet::shard::kernels
