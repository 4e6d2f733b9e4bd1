// SnapshotBudget: when the next snapshot is worth what it costs. Rank 0 has one and tells the others; what it
// measures decides when a snapshot is made, never what is learned. Used by the training thread.
//
// Two costs count. Training stands still while the snapshot is written, for c seconds: with nodes lost every M
// seconds, an interval of sqrt(2 c M) costs the least, together with the work that is done again (Young, CACM
// 1974; Daly, FGCS 2006). Where M is not known, c may be 1 % of the time. And then its bytes are sent, at a rate
// that leaves the link to training.
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

  // `bytes`: of this rank's part.
  SnapshotBudget(const SnapshotOptions& options, uint64_t bytes, double now)
      : options_(options), last_(now), cost_(static_cast<double>(bytes) / kWriteRate), bytes_(bytes) {}

  bool due(double now) const { return now - last_ >= interval(); }
  // One was written, in so many seconds; `bytes`: of the largest part of a rank.
  void made(double now, double seconds, uint64_t bytes) {
    last_ = now;
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
  const SnapshotOptions options_;
  double last_, cost_;
  uint64_t bytes_;
};

}  // namespace modelet::agent
