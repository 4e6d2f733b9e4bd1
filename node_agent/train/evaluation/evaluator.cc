#include "node_agent/train/evaluation/evaluator.h"

#include <algorithm>

#include "base/error.h"
#include "comm/collectives/gather_numbers.h"
#include "node_agent/step/exchange/rounds.h"

namespace modelet::agent {
Evaluator::Evaluator(shard::Network& network, const Sharding& sharding, comm::Group& group)
    : network_(network),
      sharding_(sharding),
      group_(group),
      forward_(network, sharding, group),
      ranker_(network.scoring(), network.pool()) {}

void Evaluator::predict(const shard::Dataset& data, std::span<const uint32_t> rows, size_t k, comm::Tag tag,
                        const OnBatch& on_batch, shard::Ranking ranking) {
  const size_t fewest = rows.size() * rounds_of_batch() / kEvaluationRounds + 1;
  const size_t batch_size = std::max(kBatch, fewest);
  shard::Batch batch;
  shard::TopK best;
  for (size_t first = 0; first < rows.size(); first += batch_size) {
    batch.assign(data, rows.subspan(first, std::min(batch_size, rows.size() - first)), false);
    predict(batch, k, tag, best, ranking);
    on_batch(batch, best);
    tag = tag.later(rounds_of_batch());
  }
}

void Evaluator::predict(const shard::Batch& batch, size_t k, comm::Tag tag, shard::TopK& best,
                        shard::Ranking ranking) {
  forward_.run(batch, tag, pass_);
  ranker_.rank_dense(pass_.output_input_transposed(), batch.size(), k, best, &batch, ranking);
  if (merge(tag.later(rounds_of_batch() - 1), best)) throw Stopped();
}

void Evaluator::meet(comm::Tag tag) {
  const uint64_t stops = stop_requested() ? 1 : 0;
  const std::vector<size_t> counts(static_cast<size_t>(group_.size()), 1);
  for (const auto& numbers : comm::all_gather_numbers(group_, tag, std::span(&stops, 1), counts))
    if (numbers[0] > 0) throw Stopped();
}

// Merges the scores and labels of all ranks. Labels travel as plain bytes, and so does each rank's wish to stop.
// Returns whether any rank was asked to stop.
bool Evaluator::merge(comm::Tag tag, shard::TopK& best) {
  const auto stop = static_cast<std::byte>(stop_requested());
  if (sharding_.size() == 1) return stop != std::byte{0};
  const size_t samples = best.samples(), k = best.k();
  struct Table {
    Buffer scores;  // [samples, k]
    std::vector<uint32_t> labels;
    std::byte stop{0};
  };
  std::vector<Table> tables(static_cast<size_t>(sharding_.size()));
  std::vector<std::vector<comm::InBlock>> theirs(tables.size());
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    tables[rank].labels.resize(samples * k);
    theirs[rank] = {tables[rank].scores.resize(samples, k),
                    std::as_writable_bytes(std::span(tables[rank].labels)), std::span(&tables[rank].stop, 1)};
  }
  const auto self = static_cast<size_t>(sharding_.rank());
  Table& own = tables[self];
  for (size_t s = 0; s < samples; ++s) {
    std::ranges::copy(best.scores(s), own.scores.matrix().row(s));
    std::ranges::copy(best.labels(s), own.labels.data() + s * k);
  }
  const comm::OutBlock mine[] = {{&comm::codec_of(CodecKind::kNone), own.scores.matrix()},
                                 {.bytes = std::as_bytes(std::span(own.labels))},
                                 {.bytes = std::span(&stop, 1)}};
  group_.all_gather(tag, mine, theirs);
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    if (rank == self) continue;
    for (size_t s = 0; s < samples; ++s)
      for (size_t i = 0; i < k; ++i) {
        const uint32_t label = tables[rank].labels[s * k + i];
        if (label == shard::TopK::kNoLabel) continue;
        if (label >= network_.shape().labels)
          throw FormatError("node '" + group_.node_name(static_cast<int>(rank)) +
                            "' sent the score of a label that does not exist");
        best.insert(s, tables[rank].scores.matrix().row(s)[i], label);
      }
  }
  return stop != std::byte{0} ||
         std::ranges::any_of(tables, [](const Table& table) { return table.stop != std::byte{0}; });
}

void Evaluator::evaluate(const shard::Dataset& data, std::span<const uint32_t> rows, shard::Metrics& metrics,
                         comm::Tag tag, const Progress& progress) {
  size_t done = 0;
  predict(data, rows, metrics.depth(), tag, [&](const shard::Batch& batch, const shard::TopK& best) {
    metrics.add(batch, best);
    done += batch.size();
    if (progress) progress(done, rows.size());
  });
}

}  // namespace modelet::agent
