// Exchanges small facts between ranks (checksums, byte counts): 64-bit numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/collectives/group.h"

namespace modelet::comm {

// Every rank gives `mine`, counts[rank] numbers long, and gets those of all: [size][counts[rank]].
std::vector<std::vector<uint64_t>> all_gather_numbers(Group& group, Tag tag, std::span<const uint64_t> mine,
                                                      std::span<const size_t> counts);

}  // namespace modelet::comm
