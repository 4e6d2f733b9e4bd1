// TrainingStep: one model-sharded training step, the heart of Modelet (docs/architecture.md, "One batch
// through the code"). It composes the arithmetic of shard/ with the exchanges of node_agent/step/exchange.
// With a group of one it is plain local training.
//
// All exchanges come before any update. A step that throws PeerError has therefore changed no weight, state
// or table, and a new TrainingStep in a new group can run it again. The activations of the next step may
// leave before this step updates its output layer, because they do not depend on it. They travel during the
// update, so a rank that is late with its update makes nobody wait. Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/system/clock.h"
#include "comm/collectives/group.h"
#include "node_agent/step/exchange/gradient_exchange.h"
#include "node_agent/step/exchange/output_exchange.h"
#include "node_agent/step/exchange/rounds.h"
#include "node_agent/step/exchange/sharding.h"
#include "node_agent/step/micro_batches.h"
#include "node_agent/step/sharded_forward.h"
#include "node_agent/step/step_state.h"
#include "node_agent/step/step_trace.h"
#include "shard/data/batch/batch.h"
#include "shard/layers/loss/loss.h"
#include "shard/layers/network.h"
#include "shard/layers/output_gradient.h"

namespace modelet::agent {

struct StepResult {
  double loss = 0;            // mean over the batch, the same on all ranks
  bool stop = false;          // some rank requests a stop after this step
  bool snapshot = false;      // some rank requests a snapshot after this step
  bool trace = false;         // some rank requests that the next step is traced
  size_t active_neurons = 0;  // in the modelets of this rank
};

class TrainingStep {
 public:
  // All references must outlive this object. `clock`: measures its steps (micro_batches.h). `trace` is told when a phase
  // ends; null: nobody is.
  TrainingStep(shard::Network& network, const Sharding& sharding, comm::Group& group,
               std::unique_ptr<const Clock> clock = std::make_unique<SteadyClock>(),
               StepTrace* trace = nullptr);

  // The number of micro-batches of the last step.
  size_t micro_batches() const { return now_.ranges().size(); }

  // Work for the time in which a step has sent everything and waits for the others. It is called once in
  // each step if the group has several ranks.
  void while_waiting(std::function<void()> work) { while_waiting_ = std::move(work); }

  // Sets whether steps that begin from now on tell all ranks to make a snapshot after them. After such a
  // step nothing is begun ahead.
  void request_snapshot(bool wanted) { snapshot_requested_ = wanted; }

  // Sets whether steps that begin from now on tell all ranks to trace the step after them.
  void request_trace(bool wanted) { trace_requested_ = wanted; }

  // `stop`: this rank requests a stop. `next`: the batch of the next step, if all ranks run that step next
  // and exchange nothing before it. It must be complete once while_waiting() was called. Its first
  // activations are then sent in this step, with this step's `stop`. If that fails, the next step throws
  // the error.
  StepResult run(const shard::Batch& batch, uint64_t step, float learning_rate, bool stop,
                 const shard::Batch* next = nullptr);

 private:
  void ends(TracePhase phase) {
    if (trace_ != nullptr) trace_->end_phase(phase, group_.meters());
  }
  void take_turn(const shard::Batch& batch, uint64_t step, bool stop);
  void begin(StepState& state, const shard::Batch& batch, uint64_t step, bool stop);
  void begin_ahead(const shard::Batch& next, bool stop);
  void select(StepState& now);
  void forward_output(StepState& now, size_t range);
  void combine(StepState& now);
  void backward(StepState& now);
  float clip_scale(const StepState& now);
  void update_hidden(const StepState& now, const shard::UpdateRule& rule);
  void update_output(const StepState& now, const shard::UpdateRule& rule);

  shard::Network& network_;
  const Sharding& sharding_;
  comm::Group& group_;
  const std::unique_ptr<shard::LossFunction> loss_;
  const shard::AdamCorrections corrections_;
  const comm::ExchangeCodecs codecs_;
  const std::unique_ptr<const Clock> clock_;
  MicroBatches micro_batches_;
  ShardedForward forward_;
  OutputExchange output_exchange_;
  GradientExchange gradient_exchange_;
  shard::OutputGradient output_gradient_;
  std::function<void()> while_waiting_;
  bool snapshot_requested_ = false, trace_requested_ = false;
  StepTrace* const trace_;
  StepState now_, next_;
  Buffer partial_;  // this rank's partial sums of a hidden layer's input gradient
};

}  // namespace modelet::agent
