#include "node_agent/training_step.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/padding.h"
#include "base/rng.h"
#include "shard/active_set.h"
#include "shard/dropout.h"
#include "shard/kernels/kernels.h"

namespace modelet::agent {

namespace kernels = shard::kernels;
using comm::InBlock;
using comm::OutBlock;
using comm::Tag;

namespace {

// Rounds of a step: those of the hidden layers' forward pass, a micro-batch each; of the output; one a hidden
// layer but the first on the way back; one for clipping.
constexpr size_t kMaxHiddenLayers = 20;
constexpr uint16_t kForward = CodecChoice::kRounds, kOutput = kForward + kMaxHiddenLayers * kMaxMicroBatches,
                   kBackward = kOutput + kMaxMicroBatches, kClip = kBackward + kMaxHiddenLayers;
static_assert(kClip < TrainingStep::kRounds);

size_t total(const std::vector<ColumnRange>& columns) {
  size_t sum = 0;
  for (const ColumnRange& c : columns) sum += c.count;
  return sum;
}

// The ranges of a matrix, side by side in `packed`.
void append_blocks(Matrix packed, const std::vector<ColumnRange>& columns, std::vector<InBlock>& blocks) {
  size_t at = 0;
  for (const ColumnRange& c : columns) {
    blocks.push_back(packed.columns(at, c.count));
    at += c.count;
  }
}

// The ranges of `matrix`, side by side.
ConstMatrix pack_columns(ConstMatrix matrix, const std::vector<ColumnRange>& columns, Buffer& buffer) {
  const Matrix packed = buffer.resize(matrix.rows, total(columns));
  for (size_t s = 0; s < matrix.rows; ++s) {
    float* out = packed.row(s);
    for (const ColumnRange& c : columns) out = std::copy_n(matrix.row(s) + c.first, c.count, out);
  }
  return packed;
}

}  // namespace

TrainingStep::TrainingStep(shard::Network& network, const Sharding& sharding, comm::Group& group,
                           std::unique_ptr<const Clock> clock)
    : network_(network),
      sharding_(sharding),
      group_(group),
      clock_(std::move(clock)),
      exact_(comm::require_codec("none")),
      loss_(shard::make_loss(network.experiment().model.loss)),
      corrections_(network.experiment().optimizer.beta1, network.experiment().optimizer.beta2),
      codecs_(network.experiment().exchange, sharding.size()),
      micro_batches_(network.experiment().exchange.micro_batches),
      forward_(network, sharding, group, &codecs_, network.experiment().train.hidden_dropout),
      gradients_(network.hidden_layers()),
      factors_(network.pool()),
      terms_(network.pool()),
      parts_(static_cast<size_t>(sharding.size())),
      from_rank_(static_cast<size_t>(sharding.size())),
      to_(from_rank_.size()),
      from_(from_rank_.size()) {}

StepResult TrainingStep::run(const shard::Batch& batch, uint64_t step, float learning_rate, bool stop,
                             uint16_t attempt, const shard::Batch* next) {
  shard::OutputLayer& output = network_.output();
  begin(batch, step, stop, attempt);
  forward_.go_on();
  if (retrieves_neurons(network_.experiment().sampling.mode)) forward_.finish(ranges_.size() - 1);
  output.select(batch, forward_.output_input(), step);
  output.gather();
  forward_output(batch, {step, kOutput, attempt});
  combine_loss(batch);
  combine_output_gradient();
  backward_hidden({step, kBackward, attempt});
  const float scale = clip_scale(batch, {step, kClip, attempt});

  // Every rank has all it needs: from here on nothing can fail because of a peer.
  const StepResult result{batch_loss_.loss, forward_.any_stop(), output.active_neurons()};
  const ConstMatrix hidden = forward_.output_input();
  const shard::UpdateRule rule{
      network_.experiment().optimizer, corrections_, step, learning_rate, scale, first_sample_};
  codecs_.end_step();
  update_hidden(batch, rule);
  micro_batches_.end_step(forward_.next_micro_batches(), clock_->now() - began_);
  if (next != nullptr && group_.size() > 1 && !result.stop) begin_ahead(*next, step + 1, stop);
  const auto self = static_cast<size_t>(sharding_.rank());
  output.update(hidden, batch_loss_.factors[self].data(), batch_loss_.target_factor.data(), rule);
  output.maintain(hidden, step);
  return result;
}

// Sends the activations of the first layer; nothing is left to do if begin_ahead() did.
void TrainingStep::begin(const shard::Batch& batch, uint64_t step, bool stop, uint16_t attempt) {
  const bool begun = attempt == 0 && ahead_ == step;
  ahead_.reset();
  if (const std::exception_ptr failed = std::exchange(ahead_failed_, nullptr); begun && failed)
    std::rethrow_exception(failed);
  first_sample_ = batch.first;
  if (begun) return;
  began_ = clock_->now();
  split_batch(batch.size(), group_.size() == 1 ? 1 : micro_batches_.now(), ranges_);
  codecs_.begin_step(step);
  forward_.begin(batch, ranges_, {step, kForward, attempt}, {stop, micro_batches_.next()});
}

// The step under way is half updated and has to get to its end, whatever happens here.
void TrainingStep::begin_ahead(const shard::Batch& batch, uint64_t step, bool stop) {
  forward_.set_aside();
  try {
    begin(batch, step, stop, 0);
  } catch (...) {
    ahead_failed_ = std::current_exception();
  }
  ahead_ = step;
}

// One exchange for normaliser and hidden gradient (DESIGN section 3.4), a micro-batch at a time: while one
// travels the next is computed.
void TrainingStep::forward_output(const shard::Batch& batch, Tag tag) {
  const auto tag_of = [&](size_t i) {
    return Tag{tag.step, static_cast<uint16_t>(tag.round + i), tag.attempt};
  };
  prepare_buffers(batch);
  for (size_t i = 0; i < ranges_.size(); ++i) {
    forward_.finish(i);
    network_.output().forward(forward_.output_input(), forward_.output_input_transposed(), ranges_[i]);
    send_output(ranges_[i], tag, tag_of(i));
  }
  if (while_waiting_ && group_.size() > 1) while_waiting_();
  for (size_t i = 0; i < ranges_.size(); ++i) collect_output(ranges_[i], tag_of(i));
}

void TrainingStep::prepare_buffers(const shard::Batch& batch) {
  const auto& own = sharding_.columns(network_.hidden_layers() - 1, sharding_.rank());
  for (FromRank& from : from_rank_) {
    from.statistics.resize(shard::kStatistics, padded(batch.size()));
    from.positive.resize(batch.size(), total(own));
    if (loss_->normalised()) from.negative.resize(batch.size(), total(own));
  }
}

// A gradient block as it goes to rank `to`. Its rounding follows from its place in the run, for each replica
// from another one: not from the attempt nor from how the batch is cut, for `base` is the tag of the first
// micro-batch.
OutBlock TrainingStep::gradient_block(ConstMatrix values, size_t first_row, size_t first_column, Part part,
                                      Tag base, int to) {
  codecs_.look_at_gradients(to, values);
  Rng rng(network_.experiment().train.seed,
          {kStreamQuantise, base.step, base.round, static_cast<uint64_t>(sharding_.rank()),
           static_cast<uint64_t>(part), first_column});
  if (first_sample_ != 0) rng = rng.stream(first_sample_);
  return {&codecs_.gradients(to), values, {rng.next(), first_row}};
}

// Every rank sends the statistics of its logits and, to the owner of each hidden column, its un-normalised
// part of that column's gradient.
void TrainingStep::send_output(SampleRange range, Tag base, Tag tag) {
  const shard::OutputLayer& output = network_.output();
  for (int rank = 0; rank < sharding_.size(); ++rank) {
    if (rank == sharding_.rank()) continue;
    const auto& columns = sharding_.columns(network_.hidden_layers() - 1, rank);
    auto& out = to_[static_cast<size_t>(rank)];
    out.clear();
    const auto append = [&](ConstMatrix matrix, Part part) {
      const ConstMatrix rows = matrix.row_range(range.begin, range.size());
      for (const ColumnRange& c : columns)
        out.push_back(gradient_block(rows.columns(c.first, c.count), range.begin, c.first, part, base, rank));
    };
    out.push_back({&exact_, output.statistics().columns(range.begin, range.size())});
    append(output.positive(), Part::kPositive);
    if (loss_->normalised()) append(output.negative(), Part::kNegative);
  }
  group_.send_each(tag, to_);
}

void TrainingStep::collect_output(SampleRange range, Tag tag) {
  const auto& own = sharding_.columns(network_.hidden_layers() - 1, sharding_.rank());
  for (size_t rank = 0; rank < from_.size(); ++rank) {
    FromRank& buffers = from_rank_[rank];
    auto& in = from_[rank];
    in.clear();
    const auto append = [&](const Buffer& buffer) {
      append_blocks(buffer.matrix().row_range(range.begin, range.size()), own, in);
    };
    in.push_back(buffers.statistics.matrix().columns(range.begin, range.size()));
    append(buffers.positive);
    if (loss_->normalised()) append(buffers.negative);
  }
  group_.collect(tag, from_);
}

void TrainingStep::combine_loss(const shard::Batch& batch) {
  matrices_.clear();
  for (size_t rank = 0; rank < from_rank_.size(); ++rank)
    matrices_.push_back(rank == static_cast<size_t>(sharding_.rank())
                            ? network_.output().statistics()
                            : ConstMatrix(from_rank_[rank].statistics.matrix()));
  loss_->combine(batch, matrices_, batch_loss_);
  if (!std::isfinite(batch_loss_.loss))
    throw Error(
        "training diverged: the loss is not a finite number; lower train.learning_rate, or set "
        "optimizer.clip");
}

// Own columns of the last hidden layer's gradient: all ranks' parts, rescaled to the common normaliser.
void TrainingStep::combine_output_gradient() {
  const size_t last = network_.hidden_layers() - 1;
  const shard::OutputLayer& output = network_.output();
  const Matrix activations = forward_.activations(last);
  const Matrix gradient = gradients_[last].resize(activations.rows, activations.cols);
  const auto& own = sharding_.columns(last, sharding_.rank());
  const bool normalised = loss_->normalised();
  const size_t terms = (normalised ? 2 : 1) * from_rank_.size();
  factors_.reserve(terms);
  terms_.reserve(terms);
  network_.pool().for_pieces(activations.rows, 16, [&](size_t begin, size_t end) {
    float* const factors = factors_.mine();
    const float** const vectors = terms_.mine();
    for (size_t s = begin; s < end; ++s) {
      size_t packed = 0;
      for (const ColumnRange& c : own) {
        size_t term = 0;
        for (size_t rank = 0; rank < from_rank_.size(); ++rank) {
          const FromRank& received = from_rank_[rank];
          const auto add = [&](float factor, ConstMatrix own_part, const Buffer& theirs) {
            factors[term] = factor;
            vectors[term++] = rank == static_cast<size_t>(sharding_.rank()) ? own_part.row(s) + c.first
                                                                            : theirs.matrix().row(s) + packed;
          };
          add(batch_loss_.factors[rank][s], output.positive(), received.positive);
          if (normalised) add(-batch_loss_.target_factor[s], output.negative(), received.negative);
        }
        float* const g = gradient.row(s) + c.first;
        kernels::linear_combination(factors, vectors, terms, g, c.count);
        backward_activation(activations.row(s) + c.first, g, c.count);
        packed += c.count;
      }
    }
  });
}

// From the gradient by activations to that by pre-activations. An activation that was dropped is zero, like
// one that ReLU cut off.
void TrainingStep::backward_activation(const float* activations, float* gradient, size_t n) const {
  kernels::relu_backward(activations, gradient, n);
  const float dropout = network_.experiment().train.hidden_dropout;
  if (dropout > 0) kernels::scale(shard::dropout_scale(dropout), gradient, n);
}

// From the last hidden layer down: each rank has part of the gradient of the whole layer below; the owners of
// its columns get the sum.
void TrainingStep::backward_hidden(Tag tag) {
  for (size_t layer = network_.hidden_layers() - 1; layer > 0; --layer, ++tag.round) {
    const Matrix below = forward_.activations(layer - 1);
    const Matrix partial = partial_.resize(below.rows, below.cols);
    network_.hidden(layer).backward(gradient(layer), partial);

    sums_.clear();
    for (int rank = 0; rank < sharding_.size(); ++rank) {
      const auto& columns = sharding_.columns(layer - 1, rank);
      const ConstMatrix part = pack_columns(partial, columns, parts_[static_cast<size_t>(rank)]);
      if (rank == sharding_.rank())
        sums_.push_back({nullptr, part});  // stays here
      else
        sums_.push_back(
            gradient_block(part, 0, columns.empty() ? 0 : columns.front().first, Part::kSum, tag, rank));
    }
    const auto& own = sharding_.columns(layer - 1, sharding_.rank());
    const Matrix sum = sum_.resize(below.rows, total(own));
    group_.reduce_scatter_sum(tag, sums_, sum);

    const Matrix gradient = gradients_[layer - 1].resize(below.rows, below.cols);
    for (size_t s = 0; s < below.rows; ++s) {
      const float* g = sum.row(s);
      for (const ColumnRange& c : own) {
        std::copy_n(g, c.count, gradient.row(s) + c.first);
        backward_activation(below.row(s) + c.first, gradient.row(s) + c.first, c.count);
        g += c.count;
      }
    }
  }
}

// Factor that brings the global norm of all gradients down to optimizer.clip.
float TrainingStep::clip_scale(const shard::Batch& batch, Tag tag) {
  const float clip = network_.experiment().optimizer.clip;
  if (clip == 0) return 1;
  const size_t self = static_cast<size_t>(sharding_.rank());
  double square_sum = network_.input().gradient_square_sum(batch, gradient(0));
  for (size_t layer = 1; layer < network_.hidden_layers(); ++layer)
    square_sum +=
        network_.hidden(layer).gradient_square_sum(forward_.activations(layer - 1), gradient(layer));
  square_sum += network_.output().gradient_square_sum(
      forward_.output_input(), batch_loss_.factors[self].data(), batch_loss_.target_factor.data());
  auto sum = static_cast<float>(square_sum);
  group_.all_reduce_sum(tag, {&sum, 1, 1, 1}, exact_);
  const float norm = std::sqrt(sum);
  return norm > clip ? clip / norm : 1;
}

void TrainingStep::update_hidden(const shard::Batch& batch, const shard::UpdateRule& rule) {
  for (size_t layer = 1; layer < network_.hidden_layers(); ++layer)
    network_.hidden(layer).update(forward_.activations(layer - 1), gradient(layer), rule);
  network_.input().update(batch, gradient(0), rule);
}

}  // namespace modelet::agent
