// SnapshotBudget: when the next snapshot is worth what it costs. Rank 0 has one and tells the others; what it
// measures decides when a snapshot is made, never what is learned. Used by the training thread.
//
// Two costs count. Training stands still while the snapshot is written, for c seconds: with nodes lost every M
// seconds, an interval of sqrt(2 c M) costs the least, together with the work that is done again (Young, CACM
// 1974; Daly, FGCS 2006). Where M is not known, c may be 1 % of the time. And then its bytes are sent, at a rate
// that leaves the link to training.
//
// The next one waits until the one before it is safe on other nodes: until then it protects nothing, and its bytes
// would have to queue. So a node that is lost costs an interval and the time of a transfer, never more than two
// intervals. If the one before it never becomes safe, because a disk is full or the scheduler is away, the next is
// made all the same, after a few intervals.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "node_agent/train/job/train_job.h"

namespace modelet::agent {

class SnapshotBudget {
 public:
  static constexpr double kShareOfTime = 0.01;
  static constexpr double kLeastSeconds = 5;  // for the scheduler, which writes each one down
  static constexpr double kWriteRate = 5e8;   // bytes a second, guessed until there was one
  static constexpr double kPatience = 4;      // intervals

  // `bytes`: of this rank's part.
  SnapshotBudget(const SnapshotOptions& options, uint64_t bytes, double now)
      : options_(options), last_(now), cost_(static_cast<double>(bytes) / kWriteRate), bytes_(bytes) {}

  bool due(double now) const {
    const double since = now - last_;
    return since >= interval() && (is_last_safe() || since >= kPatience * interval());
  }
  // That of `step` was written, in so many seconds (0: it was not); `bytes`: of the largest part of a rank.
  void made(double now, uint64_t step, double seconds, uint64_t bytes) {
    last_ = now;
    step_ = step;
    cost_ = seconds;
    bytes_ = bytes;
  }

  double interval() const {
    const double losses = options_.seconds_between_losses;
    const double by_time = losses > 0 ? std::sqrt(2 * cost_ * losses) : cost_ / kShareOfTime;
    const double by_link =
        options_.bytes_per_second > 0 ? static_cast<double>(bytes_) / options_.bytes_per_second : 0;
    return std::max({by_time, by_link, kLeastSeconds});
  }

 private:
  bool is_last_safe() const { return step_ == 0 || !options_.is_safe || options_.is_safe(step_); }

  const SnapshotOptions options_;
  double last_, cost_;
  uint64_t bytes_, step_ = 0;
};

}  // namespace modelet::agent
