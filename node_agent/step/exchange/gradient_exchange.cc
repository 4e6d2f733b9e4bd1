#include "node_agent/step/exchange/gradient_exchange.h"

#include <algorithm>

#include "node_agent/step/exchange/rounds.h"

namespace modelet::agent {
namespace {

// Copies the column ranges of `matrix` side by side.
ConstMatrix pack_columns(ConstMatrix matrix, const std::vector<ColumnRange>& columns, Matrix packed) {
  for (size_t s = 0; s < matrix.rows; ++s) {
    float* out = packed.row(s);
    for (const ColumnRange& c : columns) out = std::copy_n(matrix.row(s) + c.first, c.count, out);
  }
  return packed;
}

}  // namespace

GradientExchange::GradientExchange(uint64_t seed, const Sharding& sharding, comm::Group& group,
                                   const comm::Codec& codec)
    : sharding_(sharding),
      group_(group),
      encoder_(seed, sharding.rank(), codec),
      packed_(static_cast<size_t>(sharding.size())) {}

ConstMatrix GradientExchange::sum(StepPlace place, size_t from_top, size_t layer, ConstMatrix partial) {
  blocks_.clear();
  for (int rank = 0; rank < sharding_.size(); ++rank) {
    const auto& columns = sharding_.columns(layer, rank);
    const Matrix room =
        packed_[static_cast<size_t>(rank)].resize(partial.rows, sharding_.columns_of(layer, rank));
    const ConstMatrix packed = pack_columns(partial, columns, room);
    if (rank == sharding_.rank())
      blocks_.push_back({nullptr, packed});  // stays here
    else
      blocks_.push_back(encoder_.block(packed, place, hidden_gradient(from_top), 0,
                                       columns.empty() ? 0 : columns.front().first));
  }
  const Matrix sum = sum_.resize(partial.rows, sharding_.own_columns(layer));
  group_.reduce_scatter_sum(comm::Tag{place.step, kBackwardRound}.later(from_top), blocks_, sum);
  return sum;
}

}  // namespace modelet::agent
