// Who holds the files of whom.
#pragma once

#include <cstdint>
#include <vector>

namespace modelet::agent {

// The ranks of the other members of a group, in the order in which a rank offers them its files. The first is
// its partner: the ranks of the first half and those of the second half hold each other's files; the last rank
// of an odd number has rank 0. So of all pairs of members only one in about `size` has all copies of a file,
// and most losses of two nodes at once cost no snapshot. If the files of a rank were spread over all others,
// the loss of any two would cost one (Cidon et al., Copysets, USENIX ATC 2013). The price is that the files of
// a lost node come from one node and not from all. Partners are half a group apart, because ranks are in the
// order of their names, and machines with similar names are often taken back together.
inline std::vector<uint32_t> holder_order(uint32_t rank, uint32_t size) {
  std::vector<uint32_t> order;
  const uint32_t half = size / 2;
  const uint32_t partner = rank < half ? rank + half : rank < 2 * half ? rank - half : 0;
  for (uint32_t i = 0; i < size; ++i)
    if (const uint32_t next = (partner + i) % size; next != rank) order.push_back(next);
  return order;
}

}  // namespace modelet::agent
