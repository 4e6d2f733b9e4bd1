// MicroBatches: the number of micro-batches of a training step, of which one travels while the next is
// computed. It is the number in the experiment or, where that says 0, the one with which steps are fastest.
//
// More micro-batches hide more of the wire, but cost more messages and smaller matrix products, so the best
// number depends on links, cores and the model. It is measured: from time to time some steps are run with
// each number in turn, and the one with the smallest median is kept until the next trial. The division
// changes no result, so the choice needs no seed.
//
// All ranks of a group must use the same number. All measure, but rank 0 announces in each step the number
// for the next, which is brought into range. Used by the training thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/array/sample_range.h"

namespace modelet::agent {

class MicroBatches {
 public:
  static constexpr uint64_t kWarmUp = 16;  // steps of a session before the first trial
  static constexpr uint64_t kTurns = 12;   // steps that a trial gives each number
  static constexpr uint64_t kTrial = kTurns * kTriedMicroBatches;
  static constexpr uint64_t kPeriod = 640;  // steps from one trial to the next

  // wanted: exchange.micro_batches.
  explicit MicroBatches(uint32_t wanted);

  // The number for the step that begins.
  uint32_t now() const { return now_; }
  // The number for the step after it, as rank 0 says it.
  uint32_t next() const;
  // The step has succeeded. `next`: what rank 0 announced in it.
  void end_step(uint32_t next, double seconds);

 private:
  uint32_t fastest();

  const bool measured_;
  uint32_t now_, settled_on_ = 1;  // settled_on_: between trials
  uint64_t steps_ = 0;             // of this session
  // Times of a trial's steps, by number of micro-batches - 1.
  std::array<std::vector<double>, kTriedMicroBatches> seconds_;
};

}  // namespace modelet::agent
