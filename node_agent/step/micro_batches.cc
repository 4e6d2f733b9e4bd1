#include "node_agent/step/micro_batches.h"

#include <algorithm>

namespace modelet::agent {
namespace {

// More micro-batches must take less than this share of the seconds with fewer ones.
constexpr double kWorthIt = 0.99;

// The numbers take turns. Their order shifts, so that each number follows every other one at some time.
constexpr uint32_t in_turn(uint64_t step) {
  return static_cast<uint32_t>(1 + (step + step / kTriedMicroBatches) % kTriedMicroBatches);
}

bool in_warm_up(uint64_t step) { return step < MicroBatches::kWarmUp; }

// Steps since the last trial began.
uint64_t since_trial(uint64_t step) { return (step - MicroBatches::kWarmUp) % MicroBatches::kPeriod; }

}  // namespace

MicroBatches::MicroBatches(uint32_t wanted) : measured_(wanted == 0), now_(measured_ ? in_turn(0) : wanted) {
  for (auto& seconds : seconds_) seconds.reserve(kTurns);
}

uint32_t MicroBatches::next() const {
  if (!measured_) return now_;
  const uint64_t step = steps_ + 1;
  return in_warm_up(step) || since_trial(step) < kTrial ? in_turn(step) : chosen_;
}

void MicroBatches::end_step(uint32_t next, double seconds) {
  if (measured_ && !in_warm_up(steps_)) {
    const uint64_t at = since_trial(steps_);
    if (at == 0)
      for (auto& of_number : seconds_) of_number.clear();
    // The last step of a trial must already announce what follows, so it does not count.
    if (at + 1 < kTrial) seconds_[now_ - 1].push_back(seconds);
    if (at + 2 == kTrial) chosen_ = fastest();
  }
  ++steps_;
  now_ = std::clamp<uint32_t>(next, 1, measured_ ? kTriedMicroBatches : kMaxMicroBatches);
}

uint32_t MicroBatches::fastest() {
  size_t best = seconds_.size();
  double least = 0;
  for (uint32_t i = 0; i < kTriedMicroBatches; ++i) {
    std::vector<double>& seconds = seconds_[i];
    if (seconds.empty()) continue;  // not tried here, because rank 0 announced other numbers
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    if (best == seconds_.size() || *middle < kWorthIt * least) best = i, least = *middle;
  }
  return best < seconds_.size() ? static_cast<uint32_t>(best + 1) : 1;
}

}  // namespace modelet::agent
