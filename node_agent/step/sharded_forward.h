// ShardedForward: the forward pass through the hidden layers (shard/layers/forward.h), over a group. Each rank
// computes the columns of its modelets, and one all-gather for each layer gives every rank the whole activations.
// Training and evaluation share it. A pass is a value of its own (ShardedPass), so that one pass can begin while
// the activations of another are still needed. One thread.
#pragma once

#include <cstddef>

#include "comm/collectives/group.h"
#include "node_agent/step/exchange/activation_exchange.h"
#include "node_agent/step/exchange/sharding.h"
#include "shard/data/batch/batch.h"
#include "shard/layers/forward.h"
#include "shard/layers/network.h"

namespace modelet::agent {

struct ShardedPass : shard::ForwardPass {
  comm::Tag first_tag;    // each layer uses one round for each micro-batch
  StepRequests requests;  // of this rank; after finish(0), of all ranks
  size_t finished = 0;    // number of finished micro-batches
};

class ShardedForward {
 public:
  // All arguments must outlive this object. `codec`: of the activations that travel. `dropout`: the share of
  // each layer's activations that is left out in training.
  ShardedForward(shard::Network& network, const Sharding& sharding, comm::Group& group,
                 const comm::Codec& codec = comm::codec_of(CodecKind::kNone), float dropout = 0);

  // Computes the activations of all hidden layers. Uses rounds tag.round .. tag.round + hidden layers - 1.
  void run(const shard::Batch& batch, comm::Tag tag, ShardedPass& pass);

  // The same in micro-batches, so that activations travel while the caller does something else. The caller
  // sets the batch, its micro-batches, the tag and the notice of `pass`.
  // begin() computes and sends the activations of the first layer, and does not wait. go_on() does the
  // other layers. finish(i) waits until the activations of the last layer are complete for the
  // micro-batches 0 .. i.
  void begin(ShardedPass& pass);
  void go_on(ShardedPass& pass);
  void finish(ShardedPass& pass, size_t range);

 private:
  void compute(ShardedPass& pass, size_t layer, size_t range);
  void send(ShardedPass& pass, size_t layer, size_t range);
  void collect(ShardedPass& pass, size_t layer, size_t range);

  shard::Network& network_;
  const Sharding& sharding_;
  const float dropout_;
  ActivationExchange exchange_;
};

}  // namespace modelet::agent
