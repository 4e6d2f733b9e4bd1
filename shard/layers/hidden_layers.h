// The dense hidden layers of a network on one node, as far as it holds their modelets. A layer reads all
// activations of the layer below and computes the columns of its own modelets. The caller gathers the columns
// of other nodes (node_agent/step); this library never sends.
//
// Used by the training thread; parallel inside through the pool. Gradients are not kept: update() recomputes
// them row by row while they are in cache and applies them at once, gradient_square_sum() only measures them.
#pragma once

#include <vector>

#include "base/array/matrix.h"
#include "base/array/scratch.h"
#include "base/parallel/thread_pool.h"
#include "base/parallel/thread_scratch.h"
#include "shard/kernels/gemm.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {

// Dense hidden layer: activations = relu(x W^T + b).
class HiddenLayer {
 public:
  // `pairs`: batches are multiplied in bf16, with sums in fp32. Single samples never are.
  HiddenLayer(std::vector<Modelet*> modelets, ThreadPool& pool, bool pairs);

  // in [batch, inputs], in_transposed [inputs, padded batch]; fills the own columns of `out` [batch, width].
  void forward(ConstMatrix in, ConstMatrix in_transposed, Matrix out);
  // The same for one sample: in [inputs], out [width]. Any thread.
  void forward(const float* in, float* out) const;

  // in_gradient [batch, inputs] = this node's partial sums of the gradient with respect to the layer's input:
  // over own columns.
  void backward(ConstMatrix pre_gradient, Matrix in_gradient);

  double gradient_square_sum(ConstMatrix in, ConstMatrix pre_gradient);
  void update(ConstMatrix in, ConstMatrix pre_gradient, const UpdateRule& rule);

  const std::vector<Modelet*>& modelets() const { return modelets_; }

 private:
  // The right operand of the next products, before multiply() gets it, on any thread.
  void prepare(ConstMatrix right);
  void multiply(const kernels::Gemm& gemm);
  template <class Use>
  void for_each_gradient_row(ConstMatrix in, ConstMatrix pre_gradient, const Use& use);

  std::vector<Modelet*> modelets_;
  ThreadPool& pool_;
  bool pairs_;
  Scratch<Bf16> right_;           // what prepare() got, in pairs
  ThreadScratch<Bf16> left_;      // a piece of the left operand, per thread
  ThreadScratch<float> scratch_;  // a piece of gradient rows, or of activations, per thread
  std::vector<double> sums_;      // of gradient_square_sum
};

// out [in.cols, stride >= in.rows] = transposed in; columns past in.rows are set to zero.
void transpose(ConstMatrix in, Matrix out, ThreadPool& pool);

}  // namespace modelet::shard
