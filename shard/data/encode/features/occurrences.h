// Occurrences: the number of samples in which something occurs, however often in each of them. Encoders keep
// one for each bucket while they look at the training text. A plain value.
#pragma once

#include <cstdint>

namespace modelet::shard {

struct Occurrences {
  uint32_t samples = 0, last = 0;

  // `sample` counts from 1; samples come in their order.
  void add(uint64_t sample) {
    samples += last != static_cast<uint32_t>(sample) ? 1 : 0;
    last = static_cast<uint32_t>(sample);
  }
};

}  // namespace modelet::shard
