// The hidden part of a network on one node: the sparse input layer and dense hidden layers, as far as this
// node holds their modelets. A layer reads all activations of the layer below and computes the columns of its
// own modelets. The caller gathers the columns of other nodes (node_agent/step); this library never sends.
//
// Used by the training thread; parallel inside through the pool. Gradients are not kept: update() recomputes
// them row by row while they are in cache and applies them at once, gradient_square_sum() only measures them.
#pragma once

#include <memory>
#include <vector>

#include "base/array/aligned.h"
#include "base/array/matrix.h"
#include "base/array/sample_range.h"
#include "base/array/scratch.h"
#include "base/parallel/thread_pool.h"
#include "base/parallel/thread_scratch.h"
#include "shard/data/batch/batch.h"
#include "shard/data/store/feature_rows.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {

// Sparse input layer: activations = relu(sum_f x_f W[f] + b).
class InputLayer {
 public:
  // `runs`: the columns held here; each element has adjacent columns. `features` must outlive the layer.
  InputLayer(std::vector<Parameters> runs, const FeatureRows& features, ThreadPool& pool);

  // Fills the own columns of the range's rows of `out` [batch, width]. Features without rows add nothing.
  void forward(const Batch& batch, SampleRange range, Matrix out);

  // For batches whose features all have rows, as those of training data do. pre_gradient [batch, width]:
  // gradient of the loss with respect to the layer's pre-activations; only own columns are read.
  double gradient_square_sum(const Batch& batch, ConstMatrix pre_gradient);
  void update(const Batch& batch, ConstMatrix pre_gradient, const UpdateRule& rule);

 private:
  template <class Use>
  void for_each_gradient_piece(const Batch& batch, ConstMatrix pre_gradient, const Use& use);

  std::vector<Parameters> runs_;
  const FeatureRows& features_;
  ThreadPool& pool_;
  Scratch<uint32_t> entry_rows_;  // [entries of a batch] if not all features have rows, and their values
  Scratch<float> entry_values_;
  ThreadScratch<float> scratch_;       // [kRowsAtOnce, columns of a run] per thread
  std::vector<uint32_t> all_samples_;  // 0 .. batch-1 and as many ones: the bias is a feature of every sample
  std::vector<float> ones_;
  std::vector<double> sums_;  // of gradient_square_sum
};

// Dense hidden layer: activations = relu(x W^T + b).
class HiddenLayer {
 public:
  HiddenLayer(std::vector<Modelet*> modelets, ThreadPool& pool);

  // in [batch, inputs], in_transposed [inputs, padded batch]; fills the own columns of `out` [batch, width].
  void forward(ConstMatrix in, ConstMatrix in_transposed, Matrix out);

  // in_gradient [batch, inputs] = this node's partial sums of the gradient with respect to the layer's input:
  // over own columns.
  void backward(ConstMatrix pre_gradient, Matrix in_gradient);

  double gradient_square_sum(ConstMatrix in, ConstMatrix pre_gradient);
  void update(ConstMatrix in, ConstMatrix pre_gradient, const UpdateRule& rule);

  const std::vector<Modelet*>& modelets() const { return modelets_; }

 private:
  template <class Use>
  void for_each_gradient_row(ConstMatrix in, ConstMatrix pre_gradient, const Use& use);

  std::vector<Modelet*> modelets_;
  ThreadPool& pool_;
  ThreadScratch<float> scratch_;  // a piece of gradient rows, or of activations, per thread
  std::vector<double> sums_;      // of gradient_square_sum
};

// out [in.cols, stride >= in.rows] = transposed in; columns past in.rows are set to zero.
void transpose(ConstMatrix in, Matrix out, ThreadPool& pool);

}  // namespace modelet::shard
