#include "node_agent/step/training_step.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "shard/kernels/elementwise.h"
#include "shard/layers/activation.h"
#include "shard/layers/output/active_set.h"

namespace modelet::agent {

TrainingStep::TrainingStep(shard::Network& network, const Sharding& sharding, comm::Group& group,
                           std::unique_ptr<const Clock> clock, StepTrace* trace)
    : network_(network),
      sharding_(sharding),
      group_(group),
      loss_(shard::make_loss(network.experiment().model.loss)),
      corrections_(network.experiment().optimizer.beta1, network.experiment().optimizer.beta2),
      codecs_(comm::exchange_codecs(network.experiment().exchange)),
      clock_(std::move(clock)),
      micro_batches_(network.experiment().exchange.micro_batches),
      forward_(network, sharding, group, codecs_.activations, network.experiment().train.hidden_dropout),
      output_exchange_(network, loss_->normalised(), sharding, group, codecs_.gradients),
      gradient_exchange_(network.experiment().train.seed, sharding, group, codecs_.gradients),
      output_gradient_(loss_->normalised(), network.experiment().train.hidden_dropout, network.pool()),
      trace_(trace) {}

StepResult TrainingStep::run(const shard::Batch& batch, uint64_t step, float learning_rate, bool stop,
                             const shard::Batch* next) {
  take_turn(batch, step, stop);
  StepState& now = now_;
  forward_.go_on(now.forward);
  ends(TracePhase::kInput);
  select(now);
  ends(TracePhase::kSelect);
  for (size_t i = 0; i < now.ranges().size(); ++i) {
    forward_output(now, i);
    output_exchange_.send(now.place(), i, now.ranges()[i]);
  }
  ends(TracePhase::kForward);
  if (while_waiting_ && group_.size() > 1) while_waiting_();
  ends(TracePhase::kPrepare);
  output_exchange_.collect(now.place(), now.ranges());
  ends(TracePhase::kCollect);
  combine(now);
  ends(TracePhase::kCombine);
  backward(now);
  const float scale = clip_scale(now);
  ends(TracePhase::kBackward);

  // Every rank has all that it needs: from here on no peer can make the step fail.
  const shard::UpdateRule rule{
      network_.experiment().optimizer, corrections_, step, learning_rate, scale, batch.first};
  update_hidden(now, rule);
  ends(TracePhase::kUpdateHidden);
  micro_batches_.end_step(now.forward.requests.next_micro_batches, clock_->now() - now.began);
  if (next != nullptr && group_.size() > 1 && !now.forward.requests.stop && !now.forward.requests.snapshot)
    begin_ahead(*next, stop);
  ends(TracePhase::kBeginNext);
  update_output(now, rule);
  ends(TracePhase::kUpdateOutput);
  network_.output().maintain(now.forward.output_input(), step);
  ends(TracePhase::kMaintain);
  return {now.loss.loss, now.forward.requests.stop, now.forward.requests.snapshot, now.forward.requests.trace,
          network_.output().active_neurons()};
}

// Takes over the step that the previous one has begun, or begins a new one.
void TrainingStep::take_turn(const shard::Batch& batch, uint64_t step, bool stop) {
  if (!next_.begun) return begin(now_, batch, step, stop);
  std::swap(now_, next_);
  next_.begun = false;
  MODELET_CHECK(now_.number == step, "another step was begun");
  now_.forward.batch = &batch;
  if (now_.failure) std::rethrow_exception(std::exchange(now_.failure, nullptr));
}

// Begins a step: computes and sends the activations of the first layer.
void TrainingStep::begin(StepState& state, const shard::Batch& batch, uint64_t step, bool stop) {
  state.number = step;
  state.began = clock_->now();
  state.gradients.resize(network_.hidden_layers());
  state.forward.batch = &batch;
  state.forward.first_tag = {step, kForwardRound};
  state.forward.requests = {stop, snapshot_requested_, trace_requested_, micro_batches_.next()};
  split_batch(batch.size(), group_.size() == 1 ? 1 : micro_batches_.now(), state.forward.ranges);
  forward_.begin(state.forward);
}

// The current step is half updated and must be completed whatever happens here, so errors are kept for the
// next step.
void TrainingStep::begin_ahead(const shard::Batch& next, bool stop) {
  next_.begun = true;
  try {
    begin(next_, next, now_.number + 1, stop);
  } catch (...) {
    next_.failure = std::current_exception();
  }
}

// Chooses the active neurons. Meanwhile the activations travel, unless they are needed to retrieve neurons.
void TrainingStep::select(StepState& now) {
  shard::OutputLayer& output = network_.output();
  if (retrieves_neurons(network_.experiment().sampling.mode))
    forward_.finish(now.forward, now.ranges().size() - 1);
  output.select(now.batch(), now.forward.output_input(), now.number);
  output.gather();
}

void TrainingStep::forward_output(StepState& now, size_t range) {
  forward_.finish(now.forward, range);
  network_.output().forward(now.forward.output_input(), now.forward.output_input_transposed(),
                            now.ranges()[range]);
  if (group_.size() > 1) network_.output().clear_inactive(now.forward.output_input(), now.ranges()[range]);
}

// Computes, from the statistics and partial sums of all ranks, the loss and this rank's columns of the
// gradient of the last hidden layer.
void TrainingStep::combine(StepState& now) {
  loss_->combine(now.batch(), output_exchange_.statistics(), now.loss);
  if (!std::isfinite(now.loss.loss))
    throw Error(
        "training diverged: the loss is not a finite number; lower train.learning_rate, or set "
        "optimizer.clip");
  const ConstMatrix activations = now.forward.output_input();
  output_gradient_.combine(now.loss, output_exchange_.columns(), activations,
                           now.gradients.back().resize(activations.rows, activations.cols));
}

// Goes from the last hidden layer down. Each rank has partial sums of the gradient of the whole layer below;
// the owner of each column gets the whole sums.
void TrainingStep::backward(StepState& now) {
  const size_t last = network_.hidden_layers() - 1;
  for (size_t layer = last; layer > 0; --layer) {
    const Matrix below = now.forward.activations[layer - 1].matrix();
    const Matrix partial = partial_.resize(below.rows, below.cols);
    network_.hidden(layer).backward(now.gradient(layer), partial);
    if (group_.size() > 1)  // no gradient passes where an activation is zero, so it does not have to travel
      for (size_t s = 0; s < below.rows; ++s)
        shard::kernels::relu_backward(below.row(s), partial.row(s), below.cols);
    const ConstMatrix sum = gradient_exchange_.sum(now.place(), last - layer, layer - 1, partial);
    shard::backward_activation(below, network_.experiment().train.hidden_dropout, sum,
                               sharding_.columns(layer - 1, sharding_.rank()),
                               now.gradients[layer - 1].resize(below.rows, below.cols));
  }
}

// The factor that reduces the global norm of all gradients to optimizer.clip.
float TrainingStep::clip_scale(const StepState& now) {
  const float clip = network_.experiment().optimizer.clip;
  if (clip == 0) return 1;
  const auto self = static_cast<size_t>(sharding_.rank());
  double square_sum = network_.input().gradient_square_sum(now.batch(), now.gradient(0));
  for (size_t layer = 1; layer < network_.hidden_layers(); ++layer)
    square_sum += network_.hidden(layer).gradient_square_sum(now.forward.activations[layer - 1].matrix(),
                                                             now.gradient(layer));
  if (sharding_.rank() == 0)  // all ranks know it, but it must be added only once
    for (const float g : network_.output().scale_gradient(now.loss, output_exchange_.statistics()))
      square_sum += double{g} * g;
  square_sum += network_.output().gradient_square_sum(
      now.forward.output_input(), now.loss.factors[self].data(), now.loss.target_factor.data());
  auto sum = static_cast<float>(square_sum);
  group_.all_reduce_sum({now.number, kClipRound}, {&sum, 1, 1, 1}, comm::codec_of(CodecKind::kNone));
  const float norm = std::sqrt(sum);
  return norm > clip ? clip / norm : 1;
}

void TrainingStep::update_hidden(const StepState& now, const shard::UpdateRule& rule) {
  for (size_t layer = 1; layer < network_.hidden_layers(); ++layer)
    network_.hidden(layer).update(now.forward.activations[layer - 1].matrix(), now.gradient(layer), rule);
  network_.input().update(now.batch(), now.gradient(0), rule);
}

void TrainingStep::update_output(const StepState& now, const shard::UpdateRule& rule) {
  const auto self = static_cast<size_t>(sharding_.rank());
  shard::OutputLayer& output = network_.output();
  output.update_scales(output.scale_gradient(now.loss, output_exchange_.statistics()), rule);
  output.update(now.forward.output_input(), now.loss.factors[self].data(), now.loss.target_factor.data(),
                rule);
}

}  // namespace modelet::agent
