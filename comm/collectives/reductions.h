// Reductions: sums over the ranks of a group, always added in rank order. comm/collectives/group.h says
// what the operations promise, and docs/wire_format.md what they cost. Internal to comm/. Memory is kept
// for the next operation.
//
// There are three ways to all-reduce (comm/messaging/algorithm.h):
// - Every rank sends its matrix to every other rank.
// - Every rank gets all matrices by dissemination.
// - By reduce-scatter: each rank adds up its share of the matrix, and an all-gather of the sums follows
//   (Thakur, Rabenseifner, Gropp, IJHPCA 2005).
#pragma once

#include <span>
#include <vector>

#include "base/array/matrix.h"
#include "base/array/scratch.h"
#include "comm/collectives/dissemination.h"
#include "comm/messaging/messenger.h"

namespace modelet::comm {

class Reductions {
 public:
  Reductions(Messenger& messenger, Dissemination& dissemination)
      : messenger_(messenger), dissemination_(dissemination), inbox_(messenger.count()) {}

  // Both are part of an operation that begin_send() began, in a group of at least two ranks.
  void all_reduce_sum(Matrix values, const Codec& codec, Rounding rounding);
  void reduce_scatter_sum(std::span<const OutBlock> shares, Matrix mine);

 private:
  void all_reduce_by_reduce_scatter(Matrix values, const Codec& codec, Rounding rounding);
  void send_share(ConstMatrix share, const Codec& codec, Rounding rounding, int of, std::span<const int> to);
  Matrix share_of(Matrix values, size_t segments, size_t segment, int rank) const;
  void receive_into_scratch(ConstMatrix like);
  void collect();
  void add_up(Matrix sum) const;
  Matrix inbox(size_t rank) const { return std::get<Matrix>(inbox_[rank][0]); }

  Messenger& messenger_;
  Dissemination& dissemination_;
  Scratch<float> scratch_;
  std::vector<std::vector<InBlock>> inbox_;  // [size] views of scratch_, or of the result
};

}  // namespace modelet::comm
