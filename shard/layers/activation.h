// Activation: the function of the hidden layers, and its derivative: ReLU, and in training dropout
// (Srivastava et al., JMLR 15, 2014). The backward pass of neither needs a mask: an activation that was
// dropped is zero, like one that ReLU cut off.
//
// Pure functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/array/matrix.h"
#include "base/array/sample_range.h"
#include "base/experiment/partition.h"
#include "base/parallel/thread_pool.h"
#include "shard/kernels/elementwise.h"

namespace modelet::shard {

// Turns sums into activations.
inline void activate(float* values, size_t n) { kernels::relu(values, n); }

// Which activations a training step leaves out.
struct HiddenDropout {
  float rate = 0;  // share of them; 0: none
  uint64_t seed = 0, step = 0;
  uint64_t first_sample = 0;  // Batch::first
};

// Leaves out some activations [batch, width] of a range's samples in the columns of the modelets, and scales
// the others. Which ones depends on the modelet and the sample, not on the placement.
void drop_out(Matrix activations, SampleRange range, size_t layer, std::span<const ColumnRange> modelets,
              const HiddenDropout& dropout, ThreadPool& pool);

// Turns gradients with respect to activations into those with respect to the sums. `dropout`: its rate.
void backward_activation(const float* activations, float dropout, float* gradient, size_t n);
// The same for some columns of a layer, whose gradients lie side by side in `packed` [batch, columns
// together]: fills these columns of `gradient` [batch, width].
void backward_activation(ConstMatrix activations, float dropout, ConstMatrix packed,
                         std::span<const ColumnRange> columns, Matrix gradient);

}  // namespace modelet::shard
