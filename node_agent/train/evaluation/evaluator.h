// Evaluator: evaluation over a group. Every rank finds the best labels among its output modelets, and one
// all-gather merges them. With a group of one it is local evaluation and prediction. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "comm/collectives/group.h"
#include "node_agent/step/exchange/sharding.h"
#include "node_agent/step/sharded_forward.h"
#include "shard/data/store/dataset.h"
#include "shard/inference/evaluation.h"
#include "shard/inference/metrics.h"
#include "shard/layers/network.h"

namespace modelet::agent {

class Evaluator {
 public:
  static constexpr size_t kBatch = 512;  // samples scored together; large data takes larger batches

  // All arguments must outlive this object.
  Evaluator(shard::Network& network, const Sharding& sharding, comm::Group& group);

  // Thrown by predict(), evaluate() and meet(), on all ranks at the same place, after `wished` has returned true on
  // any of them. Not an Error: the run can go on from what it had.
  struct Stopped {};
  void stop_if(std::function<bool()> requested) { stop_requested_ = std::move(requested); }
  // Returns when all ranks have called it.
  void meet(comm::Tag tag);

  // Finds the k best labels of `rows` of `data`, one batch at a time in the order of `rows`. Calls
  // on_batch(batch, best) on every rank. Uses kEvaluationRounds rounds from tag.round on (rounds.h).
  using OnBatch = std::function<void(const shard::Batch& batch, const shard::TopK& best)>;
  void predict(const shard::Dataset& data, std::span<const uint32_t> rows, size_t k, comm::Tag tag,
               const OnBatch& on_batch, shard::Ranking ranking = shard::Ranking::kPrediction);

  // The same for one batch. Uses `rounds_of_batch()` rounds.
  void predict(const shard::Batch& batch, size_t k, comm::Tag tag, shard::TopK& best,
               shard::Ranking ranking = shard::Ranking::kPrediction);
  size_t rounds_of_batch() const { return network_.hidden_layers() + 1; }

  // Adds `rows` of `data` to `metrics`. The result is the same on all ranks. `progress` is called after
  // each batch with the number of rows that are done.
  using Progress = std::function<void(size_t rows, size_t total_rows)>;
  void evaluate(const shard::Dataset& data, std::span<const uint32_t> rows, shard::Metrics& metrics,
                comm::Tag tag, const Progress& progress = {});

 private:
  bool stop_requested() const { return stop_requested_ && stop_requested_(); }
  bool merge(comm::Tag tag, shard::TopK& best);

  shard::Network& network_;
  const Sharding& sharding_;
  comm::Group& group_;
  ShardedForward forward_;
  ShardedPass pass_;
  shard::LabelRanker ranker_;
  std::function<bool()> stop_requested_;
};

}  // namespace modelet::agent
