// Which replicas take part in a round (cluster.owners_per_round). Every rank draws them by itself, in the same way. Pure
// functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace modelet::agent {

using ReplicaSet = std::vector<uint8_t>;  // [replicas] 1 if the replica is in the set, else 0

// Which of `replicas` take part in the round that begins after `step`, if so many do (0: all).
ReplicaSet participants_of_round(uint64_t seed, uint64_t step, size_t replicas, size_t count);

}  // namespace modelet::agent
