// The forward pass through the hidden layers, of a batch or of one sample. Training, evaluation over a group
// (node_agent/step/sharded_forward.h) and a trained model in one process (shard/inference/model.h) share it.
//
// For each layer and micro-batch of a batch, compute() fills the columns of the modelets that the network holds; when all
// columns are there, complete() makes the transposed copy, which the next layer and the output layer read too.
// One thread, parallel inside. SampleForward does all work on the calling thread.
#pragma once

#include <cstddef>
#include <vector>

#include "base/array/aligned.h"
#include "base/array/matrix.h"
#include "base/array/sample_range.h"
#include "shard/data/batch/batch.h"
#include "shard/layers/network.h"

namespace modelet::shard {

// A batch on its way through the hidden layers. Reuses its memory from batch to batch.
struct ForwardPass {
  const Batch* batch = nullptr;     // not owned
  std::vector<SampleRange> ranges;  // its micro-batches
  std::vector<Buffer> activations;  // [hidden layers], each [batch, width]
  std::vector<Buffer> transposed;   // [hidden layers], each [width, padded batch]

  // Makes room for the activations of `batch`.
  void resize(const Network& network);
  // The part of a micro-batch.
  Matrix rows(size_t layer, size_t range) const;
  Matrix columns(size_t layer, size_t range) const;

  ConstMatrix output_input() const { return activations.back().matrix(); }
  ConstMatrix output_input_transposed() const { return transposed.back().matrix(); }
};

void compute(Network& network, ForwardPass& pass, size_t layer, size_t range);
void complete(Network& network, ForwardPass& pass, size_t layer, size_t range);

// All layers of a network that is whole, with the batch as one range.
void forward(Network& network, const Batch& batch, ForwardPass& pass);

// One sample. Allocates nothing once it is warm.
class SampleForward {
 public:
  // The activations of the last hidden layer of a network that is whole; valid until the next call.
  const float* run(const Network& network, const Sample& sample);

 private:
  AlignedVector<float> activations_[2];  // of one layer and of the next
  InputLayer::SampleMemory memory_;
};

}  // namespace modelet::shard
