// Small facts that ranks tell each other (checksums, byte counts): exact 64-bit numbers through the float
// collectives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/group.h"

namespace modelet::agent {

// Every rank gives `mine`, counts[rank] numbers long, and gets everybody's: [size][counts[rank]].
std::vector<std::vector<uint64_t>> all_gather_numbers(comm::Group& group, comm::Tag tag,
                                                      std::span<const uint64_t> mine,
                                                      std::span<const size_t> counts);

}  // namespace modelet::agent
