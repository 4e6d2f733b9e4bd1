// RateLimit: counts the bytes that leave, and says how long to wait so that they do not exceed a rate. Those that arrive
// are only counted. The caller gives the time. Any thread.
#pragma once

#include <cstdint>
#include <mutex>

namespace modelet::comm {

class RateLimit {
 public:
  // 0: no limit.
  explicit RateLimit(double bytes_per_second = 0) : bytes_per_second_(bytes_per_second) {}

  // The seconds to wait, at time `now`, before `bytes` may leave. After a pause, a tenth of a second's
  // bytes may leave at once, and no more.
  double take(uint64_t bytes, double now);
  void arrived(uint64_t bytes);
  // Bytes so far.
  uint64_t total() const;
  uint64_t total_arrived() const;

 private:
  const double bytes_per_second_;
  mutable std::mutex mutex_;
  double free_at_ = 0;  // when everything that was taken has left
  uint64_t total_ = 0, total_arrived_ = 0;
};

}  // namespace modelet::comm
