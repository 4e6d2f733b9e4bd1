// Sharding: says which rank holds which columns of which layer. It connects the placement (modelet -> rank)
// with the blocks that the collectives move. Immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/array/matrix.h"
#include "base/experiment/partition.h"

namespace modelet::agent {

class Sharding {
 public:
  // owner [partition]: rank of each modelet, in [0, size).
  Sharding(std::vector<ModeletSpec> partition, std::vector<uint32_t> owner, int rank, int size);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::vector<ModeletSpec>& partition() const { return partition_; }
  std::vector<ModeletSpec> held() const { return modelets_of(rank_); }
  std::vector<ModeletSpec> modelets_of(int rank) const;

  // The columns of a layer's activations that `rank` computes, in the blocks in which they travel.
  const std::vector<ColumnRange>& columns(size_t layer, int rank) const {
    return columns_[layer][static_cast<size_t>(rank)];
  }
  // Number of columns in all of these blocks.
  size_t columns_of(size_t layer, int rank) const;
  size_t own_columns(size_t layer) const { return columns_of(layer, rank_); }
  // The columns of this rank's modelets, one by one.
  const std::vector<ColumnRange>& own_modelets(size_t layer) const { return own_modelets_[layer]; }

 private:
  std::vector<ModeletSpec> partition_;
  std::vector<uint32_t> owner_;
  int rank_, size_;
  std::vector<std::vector<std::vector<ColumnRange>>> columns_;  // [layers][size]
  std::vector<std::vector<ColumnRange>> own_modelets_;          // [layers]
};

}  // namespace modelet::agent
