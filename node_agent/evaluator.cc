#include "node_agent/evaluator.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace modelet::agent {
namespace {

constexpr size_t kBatch = 512;  // samples scored together

// Rounds available for one evaluation; bigger test sets need bigger batches.
constexpr size_t kMaxRounds = 60000;

}  // namespace

Evaluator::Evaluator(shard::Network& network, const Sharding& sharding, comm::Group& group)
    : network_(network),
      sharding_(sharding),
      group_(group),
      forward_(network, sharding, group),
      ranker_(network.output().modelets(), network.spread(), network.pool()) {}

void Evaluator::predict(const shard::Dataset& data, std::span<const uint32_t> rows, size_t k, comm::Tag tag,
                        const OnBatch& on_batch) {
  const size_t rounds_a_batch = network_.hidden_layers() + 1;
  const size_t fewest = rows.size() * rounds_a_batch / kMaxRounds + 1;
  const size_t batch_size = std::max(kBatch, fewest);
  shard::Batch batch;
  shard::TopK best;
  for (size_t first = 0; first < rows.size(); first += batch_size) {
    batch.assign(data, rows.subspan(first, std::min(batch_size, rows.size() - first)), false);
    forward_.run(batch, tag);
    ranker_.rank_dense(forward_.output_input_transposed(), batch.size(), k, best);
    tag.round = static_cast<uint16_t>(tag.round + rounds_a_batch);
    merge({tag.step, static_cast<uint16_t>(tag.round - 1), tag.attempt}, best);
    on_batch(batch, best);
  }
}

// Scores and labels of all ranks; labels travel as the bits of floats, which the exact codec does not change.
void Evaluator::merge(comm::Tag tag, shard::TopK& best) {
  if (sharding_.size() == 1) return;
  const comm::Codec& exact = comm::require_codec("none");
  const size_t samples = best.samples(), k = best.k();
  std::vector<Buffer> tables(static_cast<size_t>(sharding_.size()));
  std::vector<std::vector<comm::InBlock>> theirs(tables.size());
  for (size_t rank = 0; rank < tables.size(); ++rank)
    theirs[rank].push_back(tables[rank].resize(samples, 2 * k));
  const auto self = static_cast<size_t>(sharding_.rank());
  const Matrix own = tables[self].matrix();
  for (size_t s = 0; s < samples; ++s)
    for (size_t i = 0; i < k; ++i) {
      own.row(s)[i] = best.scores(s)[i];
      own.row(s)[k + i] = std::bit_cast<float>(best.labels(s)[i]);
    }
  const std::vector<comm::OutBlock> mine = {{&exact, own}};
  group_.all_gather(tag, mine, theirs);
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    if (rank == self) continue;
    const Matrix table = tables[rank].matrix();
    for (size_t s = 0; s < samples; ++s)
      for (size_t i = 0; i < k; ++i) {
        const auto label = std::bit_cast<uint32_t>(table.row(s)[k + i]);
        if (label != shard::TopK::kNoLabel) best.insert(s, table.row(s)[i], label);
      }
  }
}

void Evaluator::evaluate(const shard::Dataset& data, std::span<const uint32_t> rows, shard::Metrics& metrics,
                         comm::Tag tag) {
  predict(data, rows, metrics.depth(), tag,
          [&](const shard::Batch& batch, const shard::TopK& best) { metrics.add(batch, best); });
}

}  // namespace modelet::agent
