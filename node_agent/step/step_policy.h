// StepPolicy: what is decided for a step by measurements of earlier ones: the codecs (codec_choice.h) and the
// number of micro-batches (micro_batches.h). Asked once when a step begins, told once when it has succeeded.
// Used by the training thread.
#pragma once

#include <cstdint>
#include <memory>

#include "base/experiment/experiment.h"
#include "base/system/clock.h"
#include "node_agent/step/exchange/codec_choice.h"
#include "node_agent/step/micro_batches.h"

namespace modelet::agent {

// How a step is run.
struct StepPlan {
  uint32_t micro_batches = 1;
  uint32_t next_micro_batches = 1;  // of the step after it, if this is rank 0
  double began = 0;                 // seconds, of the policy's clock
};

class StepPolicy {
 public:
  // For a group of `size`.
  StepPolicy(const Experiment::Exchange& exchange, int size, std::unique_ptr<const Clock> clock)
      : size_(size),
        clock_(std::move(clock)),
        codecs_(exchange, size),
        micro_batches_(exchange.micro_batches) {}

  CodecChoice& codecs() { return codecs_; }

  // A step may begin when the one before it has ended on this rank.
  StepPlan begin_step(uint64_t step) {
    codecs_.begin_step(step);
    return {size_ == 1 ? 1 : micro_batches_.now(), micro_batches_.next(), clock_->now()};
  }
  // `next_micro_batches`: as announced by rank 0.
  void end_step(const StepPlan& plan, uint32_t next_micro_batches) {
    codecs_.end_step();
    micro_batches_.end_step(next_micro_batches, clock_->now() - plan.began);
  }

 private:
  const int size_;
  const std::unique_ptr<const Clock> clock_;
  CodecChoice codecs_;
  MicroBatches micro_batches_;
};

}  // namespace modelet::agent
