// OutputGradient: the gradient with respect to the last hidden layer, combined from the output layers of all
// ranks. For each sample a rank has the sum of activation * weight row over its active neurons, and of weight
// rows over its labels (OutputLayer::positive(), negative()). With the factors of the loss these add up to
//
//   dL/dH = sum over ranks of factor[rank] * positive[rank] - target_factor * negative[rank]
//
// Keeps scratch; used by one thread, parallel inside.
#pragma once

#include <span>
#include <vector>

#include "base/array/matrix.h"
#include "base/experiment/experiment.h"
#include "base/experiment/partition.h"
#include "base/parallel/thread_pool.h"
#include "base/parallel/thread_scratch.h"
#include "shard/layers/loss/loss.h"

namespace modelet::shard {

// A rank's partial sums of adjacent columns: [B, columns]. If the loss is not normalised, there are no
// negative ones.
struct PartialSums {
  ConstMatrix positive, negative;
};
struct OutputColumns {
  ColumnRange range;
  std::vector<PartialSums> partials;  // [ranks]
};

class OutputGradient {
 public:
  // `normalised`: LossFunction::normalised(); `dropout`: rate of dropout of the hidden activations.
  OutputGradient(bool normalised, float dropout, ThreadPool& pool);

  // Fills the given columns of `gradient` [B, width] with respect to the layer's sums, before its activation.
  void combine(const BatchLoss& loss, std::span<const OutputColumns> columns, ConstMatrix activations,
               Matrix gradient);

 private:
  const bool normalised_;
  const float dropout_;
  ThreadPool& pool_;
  ThreadScratch<float> factors_;
  ThreadScratch<const float*> terms_;
};

}  // namespace modelet::shard
