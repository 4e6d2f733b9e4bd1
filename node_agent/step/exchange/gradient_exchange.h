// GradientExchange: adds up gradients in the backward pass through the hidden layers. Each rank has
// partial sums of the gradient with respect to all activations of the layer below. The owner of each column
// gets the whole sums. Owns the packed columns and the lists of blocks. Used by one thread.
#pragma once

#include <cstddef>
#include <vector>

#include "base/array/matrix.h"
#include "comm/collectives/group.h"
#include "node_agent/step/exchange/gradient_encoder.h"
#include "node_agent/step/exchange/sharding.h"

namespace modelet::agent {

class GradientExchange {
 public:
  // All references must outlive this object. `seed`: the run's.
  GradientExchange(uint64_t seed, const Sharding& sharding, comm::Group& group, const comm::Codec& codec);

  // Adds up all ranks' `partial` [B, width of `layer`] in rank order. Returns this rank's columns of the sum,
  // side by side: [B, own columns]. The result is valid until the next call. `from_top` counts layers
  // downwards: 0 is the last but one.
  ConstMatrix sum(StepPlace place, size_t from_top, size_t layer, ConstMatrix partial);

 private:
  const Sharding& sharding_;
  comm::Group& group_;
  GradientEncoder encoder_;
  std::vector<Buffer> packed_;  // [size] columns of the partial sums, by their owner
  Buffer sum_;
  std::vector<comm::OutBlock> blocks_;  // a member only to reuse its memory
};

}  // namespace modelet::agent
