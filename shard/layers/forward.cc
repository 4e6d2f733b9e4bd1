#include "shard/layers/forward.h"

#include "base/array/padding.h"

namespace modelet::shard {

void ForwardPass::resize(const Network& network) {
  const size_t samples = batch->size(), layers = network.hidden_layers();
  activations.resize(layers);
  transposed.resize(layers);
  for (size_t layer = 0; layer < layers; ++layer) {
    const size_t width = network.experiment().model.hidden[layer];
    activations[layer].resize(samples, width);
    transposed[layer].resize(width, padded(samples));
  }
}

Matrix ForwardPass::rows(size_t layer, size_t range) const {
  return activations[layer].matrix().row_range(ranges[range].begin, ranges[range].size());
}

Matrix ForwardPass::columns(size_t layer, size_t range) const {
  return transposed[layer].matrix().columns(ranges[range].begin, ranges[range].columns());
}

void compute(Network& network, ForwardPass& pass, size_t layer, size_t range) {
  if (layer == 0)
    network.input().forward(*pass.batch, pass.ranges[range], pass.activations[0].matrix());
  else
    network.hidden(layer).forward(pass.rows(layer - 1, range), pass.columns(layer - 1, range),
                                  pass.rows(layer, range));
}

void complete(Network& network, ForwardPass& pass, size_t layer, size_t range) {
  transpose(pass.rows(layer, range), pass.columns(layer, range), network.pool());
}

void forward(Network& network, const Batch& batch, ForwardPass& pass) {
  pass.batch = &batch;
  pass.ranges.assign(1, {0, batch.size()});
  pass.resize(network);
  for (size_t layer = 0; layer < network.hidden_layers(); ++layer) {
    compute(network, pass, layer, 0);
    complete(network, pass, layer, 0);
  }
}

const float* SampleForward::run(const Network& network, const Sample& sample) {
  for (size_t layer = 0; layer < network.hidden_layers(); ++layer) {
    AlignedVector<float>& out = activations_[layer % 2];
    out.resize(network.experiment().model.hidden[layer]);
    if (layer == 0)
      network.input().forward(sample, memory_, out.data());
    else
      network.hidden(layer).forward(activations_[(layer + 1) % 2].data(), out.data());
  }
  return activations_[(network.hidden_layers() + 1) % 2].data();
}

}  // namespace modelet::shard
