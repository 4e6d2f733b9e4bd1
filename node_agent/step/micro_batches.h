// MicroBatches: chooses the number of micro-batches of a training step. While one micro-batch travels, the
// next is computed. The number is that of the experiment or, if the experiment says 0, the one with which
// steps are fastest.
//
// More micro-batches hide more of the time on the wire, but need more messages and smaller matrix products.
// The best number depends on links, cores and the model, so it is measured. From time to time, a trial runs
// some steps with each number in turn. The number with the smallest median is used until the next trial.
// The division into micro-batches changes no result, so the choice needs no seed.
//
// All ranks of a group must use the same number. All measure, but in each step rank 0 announces the number
// for the next one, and the receivers limit it to the valid range. Used by the training thread.
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

  // `wanted`: exchange.micro_batches.
  explicit MicroBatches(uint32_t wanted);

  // The number for the step that is about to begin.
  uint32_t now() const { return now_; }
  // The number for the step after that one. Rank 0 announces it.
  uint32_t next() const;
  // The step has succeeded. `next`: the number that rank 0 announced in it.
  void end_step(uint32_t next, double seconds);

 private:
  uint32_t fastest();

  const bool measured_;
  uint32_t now_, chosen_ = 1;  // chosen_: the number to use between trials
  uint64_t steps_ = 0;         // steps of this session
  // Seconds of a trial's steps, by number of micro-batches - 1.
  std::array<std::vector<double>, kTriedMicroBatches> seconds_;
};

}  // namespace modelet::agent
