#include "node_agent/replicas/participants.h"

#include <numeric>
#include <utility>

#include "base/rng.h"

namespace modelet::agent {

// The first `count` of a random order (Fisher, Yates).
ReplicaSet participants_of_round(uint64_t seed, uint64_t step, size_t replicas, size_t count) {
  if (count == 0 || count >= replicas) return ReplicaSet(replicas, 1);
  std::vector<size_t> order(replicas);
  std::iota(order.begin(), order.end(), size_t{0});
  Rng rng(seed, {kStreamOwners, step});
  ReplicaSet set(replicas, 0);
  for (size_t i = 0; i < count; ++i) {
    std::swap(order[i], order[i + rng.below(static_cast<uint32_t>(replicas - i))]);
    set[order[i]] = 1;
  }
  return set;
}

}  // namespace modelet::agent
