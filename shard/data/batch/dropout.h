// Dropout (Srivastava et al., JMLR 15, 2014): a training step leaves out each value with probability `rate`
// and divides the others by 1 - rate, so that inference needs no change. The choice is a function of the seed
// and of the place (step, sample in the batch, layer, modelet): the same whatever the nodes and threads.
//
// Pure functions of their arguments; thread-safe as such.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/rng.h"

namespace modelet::shard {

// Draws one after the other whether the next value is left out. Four draws come from one random number.
class DropoutMask {
 public:
  DropoutMask(float rate, Rng rng) : below_(static_cast<uint64_t>(rate * kRange)), rng_(rng) {}

  bool drops_next() {
    if (left_ == 0) {
      bits_ = rng_.next();
      left_ = 64 / kBits;
    }
    const bool drops = (bits_ & (kRange - 1)) < below_;
    bits_ >>= kBits;
    --left_;
    return drops;
  }

 private:
  static constexpr int kBits = 16;
  static constexpr uint64_t kRange = uint64_t{1} << kBits;

  uint64_t below_, bits_ = 0;
  int left_ = 0;
  Rng rng_;
};

// The factor by which the remaining values are multiplied.
inline float dropout_scale(float rate) { return 1 / (1 - rate); }

}  // namespace modelet::shard
