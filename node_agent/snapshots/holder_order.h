// Who holds the files of whom.
#pragma once

#include <cstdint>
#include <vector>

namespace modelet::agent {

// The ranks of the other members of a group, in the order in which a rank offers them its files. The first is
// its partner: ranks 0 and 1 hold each other's files, 2 and 3 do, and so on; the last rank of an odd number has
// the one before it. So of all pairs of members only one in about `size` has all copies of a file, and most
// losses of two nodes at once cost no snapshot. If the files of a rank were spread over all others, the loss of
// any two would cost one (Cidon et al., Copysets, USENIX ATC 2013). The price is that the files of a lost node
// come from one node and not from all.
inline std::vector<uint32_t> holder_order(uint32_t rank, uint32_t size) {
  std::vector<uint32_t> order;
  const uint32_t other = rank ^ 1;
  const uint32_t partner = other < size ? other : rank - 1;
  for (uint32_t i = 0; i < size && size > 1; ++i)
    if (const uint32_t next = (partner + i) % size; next != rank) order.push_back(next);
  return order;
}

}  // namespace modelet::agent
