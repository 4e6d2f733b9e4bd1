// Sharding: which rank holds which columns of which layer. The bridge between the placement (modelet -> rank)
// and the blocks that the collectives move. Immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "base/cut.h"
#include "base/matrix.h"

namespace modelet::agent {

class Sharding {
 public:
  // owner [cut]: rank of each modelet, in [0, size).
  Sharding(std::vector<ModeletSpec> cut, std::vector<uint32_t> owner, int rank, int size);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::vector<ModeletSpec>& cut() const { return cut_; }
  std::vector<ModeletSpec> held() const { return modelets_of(rank_); }
  std::vector<ModeletSpec> modelets_of(int rank) const;

  // A layer's activations that `rank` computes, in the blocks in which they travel.
  const std::vector<ColumnRange>& columns(size_t layer, int rank) const {
    return columns_[layer][static_cast<size_t>(rank)];
  }
  // Those of the modelets here, one by one.
  const std::vector<ColumnRange>& own_modelets(size_t layer) const { return own_modelets_[layer]; }

 private:
  std::vector<ModeletSpec> cut_;
  std::vector<uint32_t> owner_;
  int rank_, size_;
  std::vector<std::vector<std::vector<ColumnRange>>> columns_;  // [layers][size]
  std::vector<std::vector<ColumnRange>> own_modelets_;          // [layers]
};

// A float matrix whose memory is kept between steps. rows() x cols() may shrink and grow.
class Buffer {
 public:
  Matrix resize(size_t rows, size_t cols) {
    if (values_.size() < rows * cols) values_.resize(rows * cols);
    matrix_ = {values_.data(), rows, cols, cols};
    return matrix_;
  }
  Matrix matrix() const { return matrix_; }
  size_t memory_bytes() const { return values_.capacity() * sizeof(float); }

 private:
  AlignedVector<float> values_;
  Matrix matrix_;
};

}  // namespace modelet::agent
