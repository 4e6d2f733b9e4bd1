#include "node_agent/sharded_forward.h"

#include <utility>

#include "base/padding.h"
#include "base/rng.h"
#include "shard/dropout.h"

namespace modelet::agent {

using comm::InBlock;
using comm::OutBlock;

namespace {
// A rank's notice, as it travels.
enum NoticeNumber : size_t { kStop, kNextMicroBatches, kNoticeNumbers };
}  // namespace

ShardedForward::ShardedForward(shard::Network& network, const Sharding& sharding, comm::Group& group,
                               CodecChoice* codecs, float dropout)
    : network_(network),
      sharding_(sharding),
      group_(group),
      codecs_(codecs),
      dropout_(dropout),
      exact_(comm::require_codec("none")),
      activations_(network.hidden_layers()),
      transposed_(network.hidden_layers()),
      theirs_(static_cast<size_t>(sharding.size())) {}

void ShardedForward::run(const shard::Batch& batch, comm::Tag tag) {
  whole_ = {0, batch.size()};
  begin(batch, std::span(&whole_, 1), tag, {});
  go_on();
  finish(0);
}

void ShardedForward::begin(const shard::Batch& batch, std::span<const SampleRange> ranges, comm::Tag tag,
                           const Notice& notice) {
  batch_ = &batch;
  ranges_ = ranges;
  tag_ = tag;
  finished_ = 0;
  float* mine = notices_.resize(theirs_.size(), kNoticeNumbers).row(static_cast<size_t>(sharding_.rank()));
  mine[kStop] = notice.stop ? 1 : 0;
  mine[kNextMicroBatches] = static_cast<float>(notice.next_micro_batches);
  for (size_t layer = 0; layer < network_.hidden_layers(); ++layer) {
    const size_t width = network_.experiment().model.hidden[layer];
    activations_[layer].resize(batch.size(), width);
    transposed_[layer].resize(width, padded(batch.size()));
  }
  for (size_t range = 0; range < ranges.size(); ++range) {
    compute(0, range);
    send(0, range);
  }
}

void ShardedForward::go_on() {
  for (size_t layer = 1; layer < network_.hidden_layers(); ++layer)
    for (size_t range = 0; range < ranges_.size(); ++range) {
      collect(layer - 1, range);
      compute(layer, range);
      send(layer, range);
    }
}

void ShardedForward::finish(size_t range) {
  for (; finished_ <= range; ++finished_) collect(network_.hidden_layers() - 1, finished_);
}

void ShardedForward::set_aside() {
  std::swap(activations_.back(), activations_aside_);
  std::swap(transposed_.back(), transposed_aside_);
}

bool ShardedForward::any_stop() const {
  const ConstMatrix notices = notices_.matrix();
  for (size_t rank = 0; rank < notices.rows; ++rank)
    if (notices.row(rank)[kStop] != 0) return true;
  return false;
}

uint32_t ShardedForward::next_micro_batches() const {
  // A peer's number: what is none, and what is out of range, becomes one that is.
  const float told = notices_.matrix().row(0)[kNextMicroBatches];
  return told >= 1 && told <= kMaxMicroBatches ? static_cast<uint32_t>(told) : 1;
}

comm::Tag ShardedForward::tag_of(size_t layer, size_t range) const {
  return {tag_.step, static_cast<uint16_t>(tag_.round + layer * ranges_.size() + range), tag_.attempt};
}

// Own columns of a range.
void ShardedForward::compute(size_t layer, size_t range) {
  const SampleRange samples = ranges_[range];
  const Matrix out = activations(layer);
  if (layer == 0)
    network_.input().forward(*batch_, samples, out);
  else
    network_.hidden(layer).forward(
        ConstMatrix(activations(layer - 1)).row_range(samples.begin, samples.size()),
        transposed_[layer - 1].matrix().columns(samples.begin, samples.columns()),
        out.row_range(samples.begin, samples.size()));
  if (dropout_ > 0) drop_out(layer, samples);
}

// Modelet by modelet: which activations a step leaves out does not depend on the placement.
void ShardedForward::drop_out(size_t layer, SampleRange range) {
  const Matrix all = activations(layer);
  const uint64_t seed = network_.experiment().train.seed;
  network_.pool().for_pieces(range.size(), 16, [&](size_t begin, size_t end) {
    for (size_t s = range.begin + begin; s < range.begin + end; ++s)
      for (const ColumnRange& c : sharding_.own_modelets(layer))
        shard::drop_out(all.row(s) + c.first, c.count, dropout_,
                        Rng(seed, {kStreamHiddenDropout, tag_.step, layer, c.first, batch_->first + s}));
  });
}

void ShardedForward::send(size_t layer, size_t range) {
  if (sharding_.size() == 1) return;
  const Matrix rows = activations(layer).row_range(ranges_[range].begin, ranges_[range].size());
  mine_.clear();
  for (const ColumnRange& columns : sharding_.columns(layer, sharding_.rank())) {
    const Matrix block = rows.columns(columns.first, columns.count);
    if (codecs_ != nullptr) codecs_->look_at_activations(block);
    mine_.push_back({codecs_ == nullptr ? &exact_ : &codecs_->activations(), block});
  }
  if (layer == 0 && range == 0)
    mine_.push_back({&exact_, notices_.matrix().row_range(static_cast<size_t>(sharding_.rank()), 1)});
  group_.send_all(tag_of(layer, range), mine_);
}

void ShardedForward::collect(size_t layer, size_t range) {
  const SampleRange samples = ranges_[range];
  const Matrix rows = activations(layer).row_range(samples.begin, samples.size());
  if (sharding_.size() > 1) {
    for (int rank = 0; rank < sharding_.size(); ++rank) {
      std::vector<InBlock>& blocks = theirs_[static_cast<size_t>(rank)];
      blocks.clear();
      for (const ColumnRange& columns : sharding_.columns(layer, rank))
        blocks.push_back(rows.columns(columns.first, columns.count));
      if (layer == 0 && range == 0)
        blocks.push_back(notices_.matrix().row_range(static_cast<size_t>(rank), 1));
    }
    group_.collect(tag_of(layer, range), theirs_);
  }
  shard::transpose(rows, transposed_[layer].matrix().columns(samples.begin, samples.columns()),
                   network_.pool());
}

}  // namespace modelet::agent
