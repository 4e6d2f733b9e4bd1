#include "node_agent/step/exchange/sharding.h"

#include <utility>

#include "base/error.h"

namespace modelet::agent {
Sharding::Sharding(std::vector<ModeletSpec> partition, std::vector<uint32_t> owner, int rank, int size)
    : partition_(std::move(partition)), owner_(std::move(owner)), rank_(rank), size_(size) {
  MODELET_CHECK(partition_.size() == owner_.size() && !partition_.empty());
  columns_.resize(partition_.back().layer + 1,
                  std::vector<std::vector<ColumnRange>>(static_cast<size_t>(size)));
  own_modelets_.resize(columns_.size());
  for (const ModeletSpec& spec : partition_) {
    MODELET_CHECK(owner_[spec.id] < static_cast<uint32_t>(size), "owner is not a rank");
    append_columns(columns_[spec.layer][owner_[spec.id]], spec);
    if (owner_[spec.id] == static_cast<uint32_t>(rank))
      own_modelets_[spec.layer].push_back({spec.begin, spec.neurons()});
  }
}

std::vector<ModeletSpec> Sharding::modelets_of(int rank) const {
  std::vector<ModeletSpec> found;
  for (const ModeletSpec& spec : partition_)
    if (owner_[spec.id] == static_cast<uint32_t>(rank)) found.push_back(spec);
  return found;
}

size_t Sharding::columns_of(size_t layer, int rank) const {
  size_t sum = 0;
  for (const ColumnRange& c : columns(layer, rank)) sum += c.count;
  return sum;
}

}  // namespace modelet::agent
