// Tag: names one operation of a training group.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace modelet::comm {

// Every rank of the group calls an operation with the same tag. No tag is used twice in an epoch, and the
// tags of a Group grow in the order (step, round). So the tag tells a late message, of an operation that is
// over, from an early one, of an operation to come. A failed step is run again in a new epoch.
struct Tag {
  uint64_t step = 0;
  uint16_t round = 0;  // number of the operation within the step
  uint16_t hop = 0;    // number of the message within an operation. Group sets it; callers leave it 0

  auto operator<=>(const Tag&) const = default;

  // The operation `rounds` rounds later in the same step.
  Tag later(size_t rounds) const {
    MODELET_CHECK(rounds <= size_t{std::numeric_limits<uint16_t>::max()} - round,
                  "a step has too many rounds");
    return {step, static_cast<uint16_t>(round + rounds), hop};
  }
};

}  // namespace modelet::comm
