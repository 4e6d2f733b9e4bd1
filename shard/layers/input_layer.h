// InputLayer: from the samples of a batch to the activations of the first hidden layer, as far as this node
// holds its modelets. The caller gathers the columns of other nodes (node_agent/step).
//
// Used by the training thread; parallel inside through the pool. Gradients are not kept: update() recomputes
// them row by row while they are in cache and applies them at once, gradient_square_sum() only measures them.
#pragma once

#include <memory>
#include <vector>

#include "base/array/matrix.h"
#include "base/array/sample_range.h"
#include "base/parallel/thread_pool.h"
#include "shard/data/batch/batch.h"
#include "shard/data/store/feature_rows.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {

class InputLayer {
 public:
  virtual ~InputLayer() = default;

  // Fills the own columns of the range's rows of `out` [batch, width].
  virtual void forward(const Batch& batch, SampleRange range, Matrix out) = 0;
  // The same for one sample: out [width]. Any thread, with a memory of its own.
  struct SampleMemory {
    std::vector<uint32_t> rows;
    std::vector<float> values;
  };
  virtual void forward(const Sample& sample, SampleMemory& memory, float* out) const = 0;

  // For batches of training data. pre_gradient [batch, width]: gradient of the loss with respect to the
  // layer's pre-activations; only own columns are read.
  virtual double gradient_square_sum(const Batch& batch, ConstMatrix pre_gradient) = 0;
  virtual void update(const Batch& batch, ConstMatrix pre_gradient, const UpdateRule& rule) = 0;
};

// activations = relu(sum_f x_f W[f] + b). Features without rows add nothing; those of training data have rows.
// `runs`: the columns held here; each element has adjacent columns. `features` must outlive the layer.
std::unique_ptr<InputLayer> make_sparse_input(std::vector<Parameters> runs, const FeatureRows& features,
                                              ThreadPool& pool);

}  // namespace modelet::shard
