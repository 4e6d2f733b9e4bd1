// Attempts: how often a run has recovered from the same step, and the nodes that failed before its group worked. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>

namespace modelet::scheduler {

class Attempts {
 public:
  Attempts() = default;
  Attempts(uint64_t step, uint32_t count) : step_(step), count_(count) {}

  uint64_t step() const { return step_; }
  uint32_t count() const { return count_; }
  // Whether several groups in turn came to nothing, so the cause is one that lasts.
  bool are_in_vain(uint64_t step) const { return count_ >= kPatience && step_ == step; }
  // Seconds to wait before the next group. A cause that lasts for a while, such as a full disk, must not use up all
  // attempts at once.
  double rest() const {
    return count_ <= kAtOnce ? 0 : std::min(kLongestRest, kFirstRest * std::exp2(count_ - kAtOnce - 1));
  }

  // The run recovers from this step. From another step than before, it has all attempts again.
  void recover_from(uint64_t step) {
    if (step != step_) *this = Attempts(step, 0);
  }
  uint32_t add() { return ++count_; }
  // A node has failed before its group worked. Returns how often it has.
  uint32_t failed(const std::string& node) { return ++failures_[node]; }

 private:
  static constexpr uint32_t kPatience = 3, kAtOnce = 2;
  static constexpr double kFirstRest = 2, kLongestRest = 30;

  uint64_t step_ = 0;
  uint32_t count_ = 0;
  std::map<std::string, uint32_t> failures_;  // by node
};

}  // namespace modelet::scheduler
