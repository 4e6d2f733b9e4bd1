#include "node_agent/step/exchange/output_exchange.h"

#include "base/array/padding.h"
#include "node_agent/step/exchange/rounds.h"

namespace modelet::agent {
namespace {

comm::Tag output_tag(StepPlace place, size_t i) { return comm::Tag{place.step, kOutputRound}.later(i); }

// Appends the column ranges of a matrix that has them side by side.
void append_packed(Matrix packed, const std::vector<ColumnRange>& columns,
                   std::vector<comm::InBlock>& blocks) {
  size_t at = 0;
  for (const ColumnRange& c : columns) {
    blocks.push_back(packed.columns(at, c.count));
    at += c.count;
  }
}

}  // namespace

OutputExchange::OutputExchange(shard::Network& network, bool normalised, const Sharding& sharding,
                               comm::Group& group, const comm::Codec& codec)
    : output_(network.output()),
      normalised_(normalised),
      layer_(network.hidden_layers() - 1),
      sharding_(sharding),
      group_(group),
      exact_(comm::codec_of(CodecKind::kNone)),
      encoder_(network.experiment().train.seed, sharding.rank(), codec),
      received_(static_cast<size_t>(sharding.size())),
      statistics_(received_.size()),
      to_(received_.size()),
      from_(received_.size()) {
  for (const ColumnRange& columns : sharding.columns(layer_, sharding.rank()))
    columns_.push_back({columns, std::vector<shard::PartialSums>(received_.size())});
}

void OutputExchange::send(StepPlace place, size_t i, SampleRange range) {
  for (int rank = 0; rank < sharding_.size(); ++rank) {
    if (rank == sharding_.rank()) continue;
    auto& out = to_[static_cast<size_t>(rank)];
    out.clear();
    const auto append = [&](ConstMatrix matrix, GradientKind kind) {
      const ConstMatrix rows = matrix.row_range(range.begin, range.size());
      for (const ColumnRange& c : sharding_.columns(layer_, rank))
        out.push_back(encoder_.block(rows.columns(c.first, c.count), place, kind, range.begin, c.first));
    };
    out.push_back({&exact_, output_.statistics().columns(range.begin, range.size())});
    append(output_.positive(), kOutputPositive);
    if (normalised_) append(output_.negative(), kOutputNegative);
  }
  group_.send_each(output_tag(place, i), to_);
}

void OutputExchange::collect(StepPlace place, std::span<const SampleRange> ranges) {
  make_room(ranges.back().end);
  for (size_t i = 0; i < ranges.size(); ++i) collect(place, i, ranges[i]);
  arrange();
}

void OutputExchange::make_room(size_t samples) {
  const size_t own = sharding_.own_columns(layer_);
  for (size_t rank = 0; rank < received_.size(); ++rank) {
    if (rank == static_cast<size_t>(sharding_.rank())) continue;
    Received& received = received_[rank];
    received.statistics.resize(output_.statistics().rows, padded(samples));
    received.positive.resize(samples, own);
    if (normalised_) received.negative.resize(samples, own);
  }
}

void OutputExchange::collect(StepPlace place, size_t i, SampleRange range) {
  const auto& own = sharding_.columns(layer_, sharding_.rank());
  for (size_t rank = 0; rank < from_.size(); ++rank) {
    if (rank == static_cast<size_t>(sharding_.rank())) continue;
    const Received& received = received_[rank];
    auto& in = from_[rank];
    in.clear();
    in.push_back(received.statistics.matrix().columns(range.begin, range.size()));
    append_packed(received.positive.matrix().row_range(range.begin, range.size()), own, in);
    if (normalised_) append_packed(received.negative.matrix().row_range(range.begin, range.size()), own, in);
  }
  group_.collect(output_tag(place, i), from_);
}

// This rank's partial sums are in the output layer, and those of other ranks where they were received.
void OutputExchange::arrange() {
  const auto self = static_cast<size_t>(sharding_.rank());
  for (size_t rank = 0; rank < received_.size(); ++rank) {
    const Received& received = received_[rank];
    statistics_[rank] = rank == self ? output_.statistics() : ConstMatrix(received.statistics.matrix());
    size_t packed = 0;
    for (shard::OutputColumns& columns : columns_) {
      const ColumnRange range = columns.range;
      const auto partial = [&](ConstMatrix own, const Buffer& theirs) {
        return rank == self ? own.columns(range.first, range.count)
                            : ConstMatrix(theirs.matrix().columns(packed, range.count));
      };
      shard::PartialSums& of_rank = columns.partials[rank];
      of_rank.positive = partial(output_.positive(), received.positive);
      if (normalised_) of_rank.negative = partial(output_.negative(), received.negative);
      packed += range.count;
    }
  }
}

}  // namespace modelet::agent
