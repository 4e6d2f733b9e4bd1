// SnapshotBudget: when the next snapshot is worth what it costs. Rank 0 has one and tells the others; what
// it measures decides when a snapshot is made, never what is learned. Used by the training thread.
//
// A node that is lost costs at most an interval of work. It costs the time since the last snapshot that is
// safe on other nodes: from one snapshot to the next, and until that one has arrived. So one is made each
// half of an interval, and may take as long to arrive.
//
// Two costs say how long an interval is. Training stands still while the snapshot is written, for c
// seconds: with nodes lost every M seconds, an interval of sqrt(2 c M) costs about the least, together with
// the work that is done again (Young, CACM 1974; Daly, FGCS 2006). Where M is not known, c may be 1 % of
// the time. And then its bytes are sent, at a rate that leaves the link to training.
//
// The next one waits until the one before it is safe: until then it protects nothing, and its bytes would
// have to queue. If that never becomes safe, because a disk is full or the scheduler is away, the next is
// made all the same, after two intervals.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "node_agent/train/job/train_job.h"

namespace modelet::agent {

class SnapshotBudget {
 public:
  static constexpr double kShareOfTime = 0.01;
  static constexpr double kLeastSeconds = 10;  // for the scheduler, which writes each snapshot down
  static constexpr double kWriteRate = 5e8;    // bytes a second, guessed until there was one
  static constexpr double kPatience = 4;       // halves of an interval

  // `bytes`: of this rank's part.
  SnapshotBudget(const SnapshotOptions& options, uint64_t bytes, double now)
      : options_(options), last_(now), cost_(static_cast<double>(bytes) / kWriteRate), bytes_(bytes) {}

  bool due(double now) const {
    const double halves = 2 * (now - last_) / interval();
    return halves >= 1 && (is_last_safe() || halves >= kPatience);
  }
  // That of `step` was written, in so many seconds (0: it was not); `bytes`: of the largest part of a rank.
  void made(double now, uint64_t step, double seconds, uint64_t bytes) {
    last_ = now;
    step_ = step;
    cost_ = seconds;
    bytes_ = bytes;
  }

  // Seconds.
  double interval() const {
    const double losses = options_.seconds_between_losses;
    const double by_time = losses > 0 ? std::sqrt(2 * cost_ * losses) : 2 * cost_ / kShareOfTime;
    const double by_link =
        options_.bytes_per_second > 0 ? 2 * static_cast<double>(bytes_) / options_.bytes_per_second : 0;
    return std::max({by_time, by_link, kLeastSeconds});
  }

 private:
  bool is_last_safe() const { return step_ == 0 || !options_.is_safe || options_.is_safe(step_); }

  const SnapshotOptions options_;
  double last_, cost_;
  uint64_t bytes_, step_ = 0;
};

}  // namespace modelet::agent
