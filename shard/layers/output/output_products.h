// OutputProducts: the dense products of the shared output layer over its active neurons, in the precision of
// the weights or in floats. To callers logits, activations and gradients are [active, padded B] in fp32;
// inside, each implementation keeps the operands in the layout that its GEMM reads without packing.
//
// Order of calls in a step: gather; for each range of samples take_hidden, then logits and keep_activations
// of each piece, then positive; and gradient_rows of each piece after all samples. Functions on different
// pieces or samples may run at the same time. A piece is a range of neighbouring active neurons [first, first
// + count); first is a multiple of kPieceMultiple or begins a range, and count is at most kLargestPiece.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/array/matrix.h"
#include "base/array/sample_range.h"
#include "base/parallel/thread_pool.h"
#include "shard/kernels/simd/instruction_set.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {

// An active neuron: row of a modelet, both by index.
struct ActiveNeuron {
  uint32_t modelet, row;
};

// Active neurons [first, first + count). A piece lies within one range of products.
struct ActiveRange {
  size_t first, count;
};

class OutputProducts {
 public:
  static constexpr size_t kPieceMultiple = 2, kLargestPiece = 96;

  virtual ~OutputProducts() = default;

  // Takes the weights of the active neurons, and adds their biases to `biases` [active]; `neurons` are read
  // only during the call. Returns the ranges that make up all neurons. `in_order`: neurons are all rows of all
  // modelets. `samples`: of the whole batch.
  virtual std::span<const ActiveRange> gather(std::span<Modelet* const> modelets,
                                              std::span<const ActiveNeuron> neurons, bool in_order,
                                              size_t samples, size_t width, std::span<float> biases) = 0;

  // hidden [B, d] and hidden_transposed [d, padded B] are kept by reference until the step ends; those of the
  // range are read now.
  virtual void take_hidden(ConstMatrix hidden, ConstMatrix hidden_transposed, SampleRange range) = 0;

  // out [count, range.columns() of padded B] = weights * hidden^T + biases [count].
  virtual void logits(size_t first, size_t count, SampleRange range, const float* biases,
                      float* out) const = 0;
  // Declares activations, laid out like the logits, as final. They must stay until positive().
  virtual void keep_activations(size_t first, size_t count, SampleRange range, const float* activations) = 0;
  // out [end - begin, d] = sum over the active neurons of activation * weight row. `activations`: of all
  // active neurons.
  virtual void positive(const float* activations, size_t begin, size_t end, float* out) const = 0;
  // out [d] += weights of an active neuron.
  virtual void add_row(size_t active, float* out) const = 0;
  // out [count, d] = gradient * hidden; gradient [count, padded B] is that with respect to the logits of a
  // piece.
  virtual void gradient_rows(size_t count, const float* gradient, float* out) = 0;
};

// `pairs`: weights in bf16 are multiplied as pairs, not as the floats they stand for.
std::unique_ptr<OutputProducts> make_output_products(Precision precision, ThreadPool& pool,
                                                     bool pairs = kernels::pairs_pay());

}  // namespace modelet::shard
