// GradientExchange: in the backward pass through the hidden layers each rank has a part of the gradient with
// respect to all activations of the layer below; the owners of its columns get the sum. Owns the packed parts
// and the lists of blocks. Used by one thread.
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
  // All references must outlive it. `seed`: of the run.
  GradientExchange(uint64_t seed, const Sharding& sharding, comm::Group& group, CodecChoice& codecs);

  // The own columns of the sum of all ranks' `part` [B, width of `layer`], side by side: [B, own columns],
  // added in rank order; valid until the next call. Layers are counted `from_top`: the last but one is 0.
  ConstMatrix sum(StepPlace place, size_t from_top, size_t layer, ConstMatrix part);

 private:
  const Sharding& sharding_;
  comm::Group& group_;
  GradientEncoder encoder_;
  std::vector<Buffer> packed_;  // [size] columns of the part, by owner
  Buffer sum_;
  std::vector<comm::OutBlock> blocks_;  // kept for its memory
};

}  // namespace modelet::agent
