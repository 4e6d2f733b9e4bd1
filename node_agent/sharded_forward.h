// The hidden layers' forward pass over a group: each rank computes the columns of its modelets, an all-gather
// a layer gives every rank the whole activations. Training and evaluation share it. One thread; owns the
// activations.
#pragma once

#include <cstdint>
#include <vector>

#include "base/matrix.h"
#include "comm/group.h"
#include "node_agent/sharding.h"
#include "shard/data/batch.h"
#include "shard/network.h"

namespace modelet::agent {

class ShardedForward {
 public:
  // All arguments must outlive it. `dropout`: share of each layer's activations that is left out, in
  // training.
  ShardedForward(shard::Network& network, const Sharding& sharding, comm::Group& group, float dropout = 0);

  // Computes the activations of all hidden layers. Uses rounds tag.round .. tag.round + hidden layers - 1.
  // `stop`: this rank wishes to stop; returns whether any rank does (the wish travels with the first layer).
  bool run(const shard::Batch& batch, comm::Tag tag, bool stop);

  // [batch, width]; valid until the next run().
  Matrix activations(size_t layer) const { return activations_[layer].matrix(); }
  ConstMatrix output_input() const { return activations_.back().matrix(); }
  // [width, padded batch] of the last hidden layer.
  ConstMatrix output_input_transposed() const { return transposed_.back().matrix(); }

 private:
  void drop_out(size_t layer, uint64_t step);
  bool gather(size_t layer, comm::Tag tag, bool stop);

  shard::Network& network_;
  const Sharding& sharding_;
  comm::Group& group_;
  const float dropout_;
  const comm::Codec& codec_;
  const comm::Codec& exact_;
  std::vector<Buffer> activations_, transposed_;  // [hidden layers]
  // Of gather(), kept for their memory.
  std::vector<float> wishes_;  // [size] 1: the rank wishes to stop
  std::vector<comm::OutBlock> mine_;
  std::vector<std::vector<comm::InBlock>> theirs_;  // [size]
};

// Seed of a block's stochastic rounding: a function of where in the run it is sent.
uint64_t block_seed(uint64_t seed, comm::Tag tag, int rank, size_t block);

}  // namespace modelet::agent
