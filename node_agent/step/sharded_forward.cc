#include "node_agent/step/sharded_forward.h"

#include "base/array/padding.h"

namespace modelet::agent {
namespace {

Matrix rows_of(const ForwardPass& pass, size_t layer, size_t range) {
  const SampleRange samples = pass.ranges[range];
  return pass.activations[layer].matrix().row_range(samples.begin, samples.size());
}

Matrix columns_of(const ForwardPass& pass, size_t layer, size_t range) {
  const SampleRange samples = pass.ranges[range];
  return pass.transposed[layer].matrix().columns(samples.begin, samples.columns());
}

comm::Tag tag_of(const ForwardPass& pass, size_t layer, size_t range) {
  return pass.first_tag.later(layer * pass.ranges.size() + range);
}

// The notice travels with the first message.
StepNotice* notice_of(ForwardPass& pass, size_t layer, size_t range) {
  return layer == 0 && range == 0 ? &pass.notice : nullptr;
}

}  // namespace

ShardedForward::ShardedForward(shard::Network& network, const Sharding& sharding, comm::Group& group,
                               const comm::Codec& codec, float dropout)
    : network_(network), sharding_(sharding), dropout_(dropout), exchange_(sharding, group, codec) {}

void ShardedForward::run(const shard::Batch& batch, comm::Tag tag, ForwardPass& pass) {
  pass.batch = &batch;
  pass.ranges.assign(1, {0, batch.size()});
  pass.first_tag = tag;
  pass.notice = {};
  begin(pass);
  go_on(pass);
  finish(pass, 0);
}

void ShardedForward::begin(ForwardPass& pass) {
  const size_t samples = pass.batch->size(), layers = network_.hidden_layers();
  pass.finished = 0;
  pass.activations.resize(layers);
  pass.transposed.resize(layers);
  for (size_t layer = 0; layer < layers; ++layer) {
    const size_t width = network_.experiment().model.hidden[layer];
    pass.activations[layer].resize(samples, width);
    pass.transposed[layer].resize(width, padded(samples));
  }
  for (size_t range = 0; range < pass.ranges.size(); ++range) {
    compute(pass, 0, range);
    send(pass, 0, range);
  }
}

void ShardedForward::go_on(ForwardPass& pass) {
  for (size_t layer = 1; layer < network_.hidden_layers(); ++layer)
    for (size_t range = 0; range < pass.ranges.size(); ++range) {
      collect(pass, layer - 1, range);
      compute(pass, layer, range);
      send(pass, layer, range);
    }
}

void ShardedForward::finish(ForwardPass& pass, size_t range) {
  for (; pass.finished <= range; ++pass.finished) collect(pass, network_.hidden_layers() - 1, pass.finished);
}

// Computes this rank's columns of a micro-batch.
void ShardedForward::compute(ForwardPass& pass, size_t layer, size_t range) {
  const Matrix all = pass.activations[layer].matrix();
  if (layer == 0)
    network_.input().forward(*pass.batch, pass.ranges[range], all);
  else
    network_.hidden(layer).forward(rows_of(pass, layer - 1, range), columns_of(pass, layer - 1, range),
                                   rows_of(pass, layer, range));
  const shard::HiddenDropout dropout{.rate = dropout_,
                                     .seed = network_.experiment().train.seed,
                                     .step = pass.first_tag.step,
                                     .first_sample = pass.batch->first};
  shard::drop_out(all, pass.ranges[range], layer, sharding_.own_modelets(layer), dropout, network_.pool());
}

void ShardedForward::send(ForwardPass& pass, size_t layer, size_t range) {
  exchange_.send(tag_of(pass, layer, range), layer, rows_of(pass, layer, range),
                 notice_of(pass, layer, range));
}

void ShardedForward::collect(ForwardPass& pass, size_t layer, size_t range) {
  const Matrix rows = rows_of(pass, layer, range);
  exchange_.collect(tag_of(pass, layer, range), layer, rows, notice_of(pass, layer, range));
  shard::transpose(rows, columns_of(pass, layer, range), network_.pool());
}

}  // namespace modelet::agent
