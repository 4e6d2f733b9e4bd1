// RateLimit: counts bytes that leave, and says how long to wait so that not more than so many a second do.
// Time is given by the caller. Any thread.
#pragma once

#include <cstdint>
#include <mutex>

namespace modelet::comm {

class RateLimit {
 public:
  // 0: no limit.
  explicit RateLimit(double bytes_per_second = 0) : bytes_per_second_(bytes_per_second) {}

  // The seconds to wait, at time `now`, before `bytes` may leave. What was not used for a while allows a
  // tenth of a second's bytes at once, no more.
  double take(uint64_t bytes, double now);
  uint64_t total() const;  // bytes so far

 private:
  const double bytes_per_second_;
  mutable std::mutex mutex_;
  double free_at_ = 0;  // all that was taken has left then
  uint64_t total_ = 0;
};

}  // namespace modelet::comm
