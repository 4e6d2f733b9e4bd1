// Tag: names one operation of a training group.
#pragma once

#include <compare>
#include <cstdint>

namespace modelet::comm {

// Every rank of the group calls an operation with the same tag. No tag is used twice in an epoch, and the
// tags of a Group grow in the order (step, attempt, round): so a late message of an abandoned operation is
// told from an early one of an operation to come. A retried step is a new attempt, with rounds from the
// start.
struct Tag {
  uint64_t step = 0;
  uint16_t round = 0;    // operation within the step
  uint16_t attempt = 0;  // retries of the step
  uint16_t hop = 0;      // message after message within an operation: for Group, callers leave it 0

  bool operator==(const Tag&) const = default;
  std::strong_ordering operator<=>(const Tag& other) const {
    if (const auto order = step <=> other.step; order != 0) return order;
    if (const auto order = attempt <=> other.attempt; order != 0) return order;
    if (const auto order = round <=> other.round; order != 0) return order;
    return hop <=> other.hop;
  }
};

}  // namespace modelet::comm
