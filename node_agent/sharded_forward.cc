#include "node_agent/sharded_forward.h"

#include <algorithm>

#include "base/rng.h"
#include "shard/dropout.h"
#include "shard/kernels/kernels.h"

namespace modelet::agent {

using comm::InBlock;
using comm::OutBlock;

uint64_t block_seed(uint64_t seed, comm::Tag tag, int rank, size_t block) {
  return Rng(seed, {kStreamQuantise, tag.step, tag.round, static_cast<uint64_t>(rank), block}).next();
}

ShardedForward::ShardedForward(shard::Network& network, const Sharding& sharding, comm::Group& group,
                               float dropout)
    : network_(network),
      sharding_(sharding),
      group_(group),
      dropout_(dropout),
      codec_(comm::require_codec(network.experiment().exchange.codec)),
      exact_(comm::require_codec("none")),
      activations_(network.hidden_layers()),
      transposed_(network.hidden_layers()),
      wishes_(static_cast<size_t>(sharding.size())),
      theirs_(wishes_.size()) {}

bool ShardedForward::run(const shard::Batch& batch, comm::Tag tag, bool stop) {
  bool any_stop = stop;
  for (size_t layer = 0; layer < network_.hidden_layers(); ++layer) {
    const size_t width = network_.experiment().model.hidden[layer];
    const Matrix out = activations_[layer].resize(batch.size(), width);
    if (layer == 0)
      network_.input().forward(batch, out);
    else
      network_.hidden(layer).forward(activations(layer - 1), transposed_[layer - 1].matrix(), out);
    if (dropout_ > 0) drop_out(layer, tag.step);
    any_stop |= gather(layer, {tag.step, static_cast<uint16_t>(tag.round + layer), tag.attempt}, stop);
    shard::transpose(out, transposed_[layer].resize(width, shard::kernels::padded(batch.size())),
                     network_.pool());
  }
  return any_stop;
}

// Own columns, modelet by modelet.
void ShardedForward::drop_out(size_t layer, uint64_t step) {
  const Matrix all = activations(layer);
  const uint64_t seed = network_.experiment().train.seed;
  network_.pool().for_pieces(all.rows, 16, [&](size_t begin, size_t end) {
    for (size_t s = begin; s < end; ++s)
      for (const Sharding::Columns& c : sharding_.columns(layer, sharding_.rank()))
        shard::drop_out(all.row(s) + c.first, c.count, dropout_,
                        Rng(seed, {kStreamHiddenDropout, step, layer, c.first, s}));
  });
}

bool ShardedForward::gather(size_t layer, comm::Tag tag, bool stop) {
  if (sharding_.size() == 1) return stop;
  const Matrix all = activations(layer);
  mine_.clear();
  for (std::vector<InBlock>& blocks : theirs_) blocks.clear();
  for (int rank = 0; rank < sharding_.size(); ++rank) {
    for (const Sharding::Columns& columns : sharding_.columns(layer, rank)) {
      const Matrix block = all.columns(columns.first, columns.count);
      if (rank == sharding_.rank())
        mine_.push_back(
            {&codec_, block, block_seed(network_.experiment().train.seed, tag, rank, mine_.size())});
      else
        theirs_[static_cast<size_t>(rank)].push_back(block);
    }
  }
  const float wish = stop ? 1 : 0;
  wishes_[static_cast<size_t>(sharding_.rank())] = wish;
  mine_.push_back({&exact_, {&wish, 1, 1, 1}});
  for (size_t rank = 0; rank < wishes_.size(); ++rank) theirs_[rank].push_back({&wishes_[rank], 1, 1, 1});
  group_.all_gather(tag, mine_, theirs_);
  return std::any_of(wishes_.begin(), wishes_.end(), [](float w) { return w != 0; });
}

}  // namespace modelet::agent
