// StepPolicy: makes the choices for a step that depend on measurements of earlier steps: the codecs
// (codec_choice.h) and the number of micro-batches (micro_batches.h). It is asked once when a step begins,
// and told once when the step has succeeded. Used by the training thread.
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
  uint32_t next_micro_batches = 1;  // for the step after it, if this is rank 0
  double began = 0;                 // seconds on the policy's clock
};

class StepPolicy {
 public:
  // For a group of `size` ranks.
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
  // `next_micro_batches`: what rank 0 announced.
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
