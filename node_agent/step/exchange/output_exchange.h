// OutputExchange: what the output layers of all ranks tell each other in a step. Every rank sends the
// statistics of its logits to all, and to the owner of each hidden column its un-normalised part of that
// column's gradient: one exchange for normaliser and gradient (docs/architecture.md). It works one
// micro-batch at a time, so that one travels while the next is computed.
//
// Owns what is received, and the lists of blocks. Used by one thread.
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
  // All references must outlive it. `normalised`: LossFunction::normalised().
  OutputExchange(shard::Network& network, bool normalised, const Sharding& sharding, comm::Group& group,
                 CodecChoice& codecs);

  // Sends micro-batch i, which the output layer has computed; does not wait.
  void send(StepPlace place, size_t i, SampleRange range);
  // Waits for all micro-batches of a batch.
  void collect(StepPlace place, std::span<const SampleRange> ranges);

  // The statistics of all ranks, in order; valid until the next send().
  std::span<const ConstMatrix> statistics() const { return statistics_; }     // of OutputLayer::statistics()
  std::span<const shard::OutputColumns> columns() const { return columns_; }  // own columns of the gradient

 private:
  // What one rank has sent: statistics [rows, padded B], [B, own columns].
  struct Received {
    Buffer statistics, positive, negative;
  };

  void make_room(size_t samples);
  void collect(StepPlace place, size_t i, SampleRange range);
  void arrange();

  shard::OutputLayer& output_;
  const bool normalised_;
  const size_t layer_;  // the last hidden one
  const Sharding& sharding_;
  comm::Group& group_;
  const comm::Codec& exact_;
  GradientEncoder encoder_;
  std::vector<Received> received_;  // [size]; the own entry is unused
  std::vector<ConstMatrix> statistics_;
  std::vector<shard::OutputColumns> columns_;
  // Kept for their memory, by rank.
  std::vector<std::vector<comm::OutBlock>> to_;
  std::vector<std::vector<comm::InBlock>> from_;
};

}  // namespace modelet::agent
