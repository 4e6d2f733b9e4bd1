// Exchanges 64-bit numbers between ranks, for small facts like checksums and byte counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/collectives/group.h"

namespace modelet::comm {

// Every rank gives `mine`, which has counts[rank] numbers, and gets the numbers of all ranks:
// [size][counts[rank]]. `patience` is as in Group::all_gather().
std::vector<std::vector<uint64_t>> all_gather_numbers(Group& group, Tag tag, std::span<const uint64_t> mine,
                                                      std::span<const size_t> counts, double patience = 1);

}  // namespace modelet::comm
