// StepState: what one training step computes, from its first activations to its updates. A value that
// reuses its memory. TrainingStep has two of them, so that a step can begin before the previous one has
// ended.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "base/array/matrix.h"
#include "node_agent/step/exchange/gradient_encoder.h"
#include "node_agent/step/sharded_forward.h"
#include "shard/layers/loss/loss.h"

namespace modelet::agent {

struct StepState {
  uint64_t number = 0;
  double began = 0;     // seconds on the step's clock
  ShardedPass forward;  // batch, micro-batches, tags, activations, notice
  shard::BatchLoss loss;
  // [hidden layers] with respect to the layer's sums, [batch, width]; only this rank's columns are valid.
  std::vector<Buffer> gradients;
  bool begun = false;          // its first activations have been sent
  std::exception_ptr failure;  // why they could not be sent: thrown by this step, not by the previous one

  const shard::Batch& batch() const { return *forward.batch; }
  const std::vector<SampleRange>& ranges() const { return forward.ranges; }
  StepPlace place() const { return {number, batch().first}; }
  Matrix gradient(size_t layer) const { return gradients[layer].matrix(); }
};

}  // namespace modelet::agent
