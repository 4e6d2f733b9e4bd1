// StepState: one training step, from its first activations to its updates. A value that keeps its memory.
// TrainingStep has two of them, so that a step can begin before the one before it has ended.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "base/array/matrix.h"
#include "node_agent/step/exchange/gradient_encoder.h"
#include "node_agent/step/sharded_forward.h"
#include "node_agent/step/step_policy.h"
#include "shard/layers/loss/loss.h"

namespace modelet::agent {

struct StepState {
  uint64_t number = 0;
  StepPlan plan;
  ForwardPass forward;  // batch, micro-batches, tags, activations, notice
  shard::BatchLoss loss;
  std::vector<Buffer>
      gradients;               // [hidden layers] by the layer's sums, [batch, width]; own columns are valid
  bool begun = false;          // its first activations were sent
  std::exception_ptr failure;  // what kept them from being sent: thrown by this step, not by the one before

  const shard::Batch& batch() const { return *forward.batch; }
  const std::vector<SampleRange>& ranges() const { return forward.ranges; }
  StepPlace place() const { return {number, batch().first}; }
  Matrix gradient(size_t layer) const { return gradients[layer].matrix(); }
};

}  // namespace modelet::agent
