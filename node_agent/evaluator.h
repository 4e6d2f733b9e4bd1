// Evaluation over a group: every rank finds the best labels among its output modelets, one all-gather merges
// them. With a group of one it is local evaluation and prediction. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/group.h"
#include "node_agent/sharded_forward.h"
#include "node_agent/sharding.h"
#include "shard/data/dataset.h"
#include "shard/evaluation.h"
#include "shard/metrics.h"
#include "shard/network.h"

namespace modelet::agent {

class Evaluator {
 public:
  // All arguments must outlive it.
  Evaluator(shard::Network& network, const Sharding& sharding, comm::Group& group);

  // The k best labels of `rows` of `data`, a batch at a time in their order: on_batch(batch, best) on every
  // rank. Uses rounds from tag.round upwards.
  using OnBatch = std::function<void(const shard::Batch& batch, const shard::TopK& best)>;
  void predict(const shard::Dataset& data, std::span<const uint32_t> rows, size_t k, comm::Tag tag,
               const OnBatch& on_batch);

  // Adds `rows` of `data` to `metrics`; what results is the same on all ranks.
  void evaluate(const shard::Dataset& data, std::span<const uint32_t> rows, shard::Metrics& metrics,
                comm::Tag tag);

 private:
  void merge(comm::Tag tag, shard::TopK& best);

  shard::Network& network_;
  const Sharding& sharding_;
  comm::Group& group_;
  ShardedForward forward_;
  shard::LabelRanker ranker_;
};

}  // namespace modelet::agent
