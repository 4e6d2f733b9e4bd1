#include "node_agent/sharding.h"

#include <utility>

#include "base/error.h"

namespace modelet::agent {
Sharding::Sharding(std::vector<ModeletSpec> cut, std::vector<uint32_t> owner, int rank, int size)
    : cut_(std::move(cut)), owner_(std::move(owner)), rank_(rank), size_(size) {
  MODELET_CHECK(cut_.size() == owner_.size() && !cut_.empty());
  columns_.resize(cut_.back().layer + 1, std::vector<std::vector<ColumnRange>>(static_cast<size_t>(size)));
  own_modelets_.resize(columns_.size());
  for (const ModeletSpec& spec : cut_) {
    MODELET_CHECK(owner_[spec.id] < static_cast<uint32_t>(size), "owner is not a rank");
    append_columns(columns_[spec.layer][owner_[spec.id]], spec);
    if (owner_[spec.id] == static_cast<uint32_t>(rank))
      own_modelets_[spec.layer].push_back({spec.begin, spec.neurons()});
  }
}

std::vector<ModeletSpec> Sharding::modelets_of(int rank) const {
  std::vector<ModeletSpec> found;
  for (const ModeletSpec& spec : cut_)
    if (owner_[spec.id] == static_cast<uint32_t>(rank)) found.push_back(spec);
  return found;
}

}  // namespace modelet::agent
