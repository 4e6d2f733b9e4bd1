// OutputExchange: exchanges what the output layers of all ranks tell each other in a step. Every rank sends
// the statistics of its logits to all ranks. To the owner of each hidden column it sends its un-normalised
// partial sums of that column's gradient. So one exchange serves both the normaliser and the gradient
// (docs/architecture.md). It works on one micro-batch at a time: while one travels, the next is computed.
//
// Owns what it receives, and the lists of blocks. Used by one thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/array/matrix.h"
#include "base/array/sample_range.h"
#include "comm/collectives/group.h"
#include "node_agent/step/exchange/gradient_encoder.h"
#include "node_agent/step/exchange/sharding.h"
#include "shard/layers/network.h"
#include "shard/layers/output_gradient.h"

namespace modelet::agent {

class OutputExchange {
 public:
  // All references must outlive this object. `normalised`: LossFunction::normalised().
  OutputExchange(shard::Network& network, bool normalised, const Sharding& sharding, comm::Group& group,
                 const comm::Codec& codec);

  // Sends micro-batch i, which the output layer has computed. Does not wait.
  void send(StepPlace place, size_t i, SampleRange range);
  // Waits for all micro-batches of a batch.
  void collect(StepPlace place, std::span<const SampleRange> ranges);

  // What all ranks sent, in rank order. Valid until the next send().
  std::span<const ConstMatrix> statistics() const { return statistics_; }  // of OutputLayer::statistics()
  // This rank's columns of the gradient.
  std::span<const shard::OutputColumns> columns() const { return columns_; }

 private:
  // What one rank has sent: statistics [rows, padded B]; positive and negative [B, own columns].
  struct Received {
    Buffer statistics, positive, negative;
  };

  void make_room(size_t samples);
  void collect(StepPlace place, size_t i, SampleRange range);
  void arrange();

  shard::OutputLayer& output_;
  const bool normalised_;
  const size_t layer_;  // the last hidden layer
  const Sharding& sharding_;
  comm::Group& group_;
  const comm::Codec& exact_;
  GradientEncoder encoder_;
  std::vector<Received> received_;  // [size]; this rank's own entry is unused
  std::vector<ConstMatrix> statistics_;
  std::vector<shard::OutputColumns> columns_;
  // By rank; members only to reuse their memory.
  std::vector<std::vector<comm::OutBlock>> to_;
  std::vector<std::vector<comm::InBlock>> from_;
};

}  // namespace modelet::agent
