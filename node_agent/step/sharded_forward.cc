#include "node_agent/step/sharded_forward.h"

#include "shard/layers/activation.h"

namespace modelet::agent {
namespace {

comm::Tag tag_of(const ShardedPass& pass, size_t layer, size_t range) {
  return pass.first_tag.later(layer * pass.ranges.size() + range);
}

// The notice travels with the first message.
StepRequests* requests_of(ShardedPass& pass, size_t layer, size_t range) {
  return layer == 0 && range == 0 ? &pass.requests : nullptr;
}

}  // namespace

ShardedForward::ShardedForward(shard::Network& network, const Sharding& sharding, comm::Group& group,
                               const comm::Codec& codec, float dropout)
    : network_(network), sharding_(sharding), dropout_(dropout), exchange_(sharding, group, codec) {}

void ShardedForward::run(const shard::Batch& batch, comm::Tag tag, ShardedPass& pass) {
  pass.batch = &batch;
  pass.ranges.assign(1, {0, batch.size()});
  pass.first_tag = tag;
  pass.requests = {};
  begin(pass);
  go_on(pass);
  finish(pass, 0);
}

void ShardedForward::begin(ShardedPass& pass) {
  pass.finished = 0;
  pass.resize(network_);
  for (size_t range = 0; range < pass.ranges.size(); ++range) {
    compute(pass, 0, range);
    send(pass, 0, range);
  }
}

void ShardedForward::go_on(ShardedPass& pass) {
  for (size_t layer = 1; layer < network_.hidden_layers(); ++layer)
    for (size_t range = 0; range < pass.ranges.size(); ++range) {
      collect(pass, layer - 1, range);
      compute(pass, layer, range);
      send(pass, layer, range);
    }
}

void ShardedForward::finish(ShardedPass& pass, size_t range) {
  for (; pass.finished <= range; ++pass.finished) collect(pass, network_.hidden_layers() - 1, pass.finished);
}

// Computes this rank's columns of a micro-batch.
void ShardedForward::compute(ShardedPass& pass, size_t layer, size_t range) {
  shard::compute(network_, pass, layer, range);
  const shard::HiddenDropout dropout{.rate = dropout_,
                                     .seed = network_.experiment().train.seed,
                                     .step = pass.first_tag.step,
                                     .first_sample = pass.batch->first};
  shard::drop_out(pass.activations[layer].matrix(), pass.ranges[range], layer, sharding_.own_modelets(layer),
                  dropout, network_.pool());
}

void ShardedForward::send(ShardedPass& pass, size_t layer, size_t range) {
  exchange_.send(tag_of(pass, layer, range), layer, pass.rows(layer, range), requests_of(pass, layer, range));
}

void ShardedForward::collect(ShardedPass& pass, size_t layer, size_t range) {
  exchange_.collect(tag_of(pass, layer, range), layer, pass.rows(layer, range),
                    requests_of(pass, layer, range));
  shard::complete(network_, pass, layer, range);
}

}  // namespace modelet::agent
