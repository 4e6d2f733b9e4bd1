#include "comm/transport/rate_limit.h"

#include <algorithm>

namespace modelet::comm {

double RateLimit::take(uint64_t bytes, double now) {
  constexpr double kBurst = 0.1;  // seconds
  const std::lock_guard lock(mutex_);
  total_ += bytes;
  if (bytes_per_second_ == 0) return 0;
  free_at_ = std::max(free_at_, now - kBurst) + static_cast<double>(bytes) / bytes_per_second_;
  return std::max(0.0, free_at_ - now);
}

void RateLimit::arrived(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  total_arrived_ += bytes;
}

uint64_t RateLimit::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

uint64_t RateLimit::total_arrived() const {
  const std::lock_guard lock(mutex_);
  return total_arrived_;
}

}  // namespace modelet::comm
