// SnapshotBudget: decides when the next snapshot is worth its cost. Rank 0 has one, and tells the others.
// What it measures decides when a snapshot is made, but never what is learned. Used by the training thread.
//
// The loss of a node costs at most an interval of work. It costs the work since the last snapshot that is
// safe on other nodes. That is the time from one snapshot to the next, plus the time until a snapshot has
// arrived. So a snapshot is made every half interval, and may take another half to arrive.
//
// Two costs decide how long an interval is:
// - Training loses c seconds: it stands still while the snapshot is written, and steps are slower while copies
//   take cores and memory. If a node is lost every M seconds, an interval of sqrt(2 c M) makes about the
//   smallest sum of c and of the work that is done again (Young, CACM 1974; Daly, FGCS 2006). If M is not
//   known, c may be 1 % of the time.
// - The snapshot's bytes are sent, at a rate that leaves the link to training.
//
// The next snapshot waits until the previous one is safe. Until then it would protect nothing, and its
// bytes would have to queue. If the previous one never becomes safe, because a disk is full or the
// scheduler is away, the next one is made after two intervals all the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "node_agent/train/job/train_job.h"

namespace modelet::agent {

class SnapshotBudget {
 public:
  static constexpr double kShareOfTime = 0.01;
  static constexpr double kLeastSeconds = 10;  // for the scheduler, which records each snapshot on disk
  static constexpr double kWriteRate = 5e8;    // bytes a second; a guess for the first snapshot
  static constexpr double kPatience = 4;       // half intervals
  static constexpr size_t kEnoughSteps = 20;   // to compare steps with and without copies beside them

  // `bytes`: size of this rank's part.
  SnapshotBudget(const SnapshotOptions& options, uint64_t bytes, double now)
      : options_(options), last_(now), stood_still_(static_cast<double>(bytes) / kWriteRate), bytes_(bytes) {}

  bool due(double now) const {
    const double halves = 2 * (now - last_) / interval();
    return halves >= 1 && (is_last_safe() || halves >= kPatience);
  }
  // The snapshot of `step` was written in `seconds`; step 0: it was not written. `bytes`: the largest part
  // of a rank.
  void made(double now, uint64_t step, double seconds, uint64_t bytes) {
    last_ = now;
    step_ = step;
    stood_still_ = seconds;
    bytes_ = bytes;
    slow_steps_ = 0;
    slow_.clear();
    usual_.clear();
  }
  // A step took so many seconds. Call it after each.
  void stepped(double seconds) {
    constexpr size_t kMostKept = 1000;
    const bool slow = !is_last_safe();
    if (slow) ++slow_steps_;
    std::vector<double>& times = slow ? slow_ : usual_;
    if (times.size() == kMostKept) return;
    times.push_back(seconds);
    if (!slow && usual_.size() == kEnoughSteps && slow_.size() >= kEnoughSteps)
      slowed_ = std::max(static_cast<double>(slow_steps_) * (median(slow_) - median(usual_)), slowed_ / 2);
  }

  // The interval, in seconds.
  double interval() const {
    const double losses = options_.seconds_between_losses, cost = stood_still_ + slowed_;
    const double by_time = losses > 0 ? std::sqrt(2 * cost * losses) : 2 * cost / kShareOfTime;
    const double by_link =
        options_.bytes_per_second > 0 ? 2 * static_cast<double>(bytes_) / options_.bytes_per_second : 0;
    return std::max({by_time, by_link, kLeastSeconds});
  }

 private:
  bool is_last_safe() const { return step_ == 0 || !options_.is_safe || options_.is_safe(step_); }

  static double median(std::vector<double> times) {
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::ranges::nth_element(times, middle);
    return *middle;
  }

  const SnapshotOptions options_;
  double last_;                      // time of the last snapshot
  double stood_still_, slowed_ = 0;  // seconds that the last one cost; `slowed_` may be of the one before
  uint64_t bytes_, step_ = 0;
  // Steps since the last snapshot: while its copies were on their way, and after that. Medians of their seconds
  // tell copies from disturbances, which make single steps slow.
  uint64_t slow_steps_ = 0;
  std::vector<double> slow_, usual_;
};

}  // namespace modelet::agent
