// Output layer with one active set for the whole batch.
//
// Logits are kept transposed, [active, padded B]. In this layout no product needs packing: weight rows and
// hidden rows are contiguous where the GEMM wants them so, and the softmax of all samples is computed
// column-wise without horizontal sums.
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/parallel/thread_scratch.h"
#include "shard/kernels/elementwise.h"
#include "shard/layers/output/output_layer.h"
#include "shard/layers/output/output_products.h"
#include "shard/modelet/update_rows.h"

namespace modelet::shard {
namespace {

// Active neurons that are processed together: their logits for 256 samples fit into L2. A multiple of the
// GEMM's tile.
constexpr size_t kPiece = OutputProducts::kLargestPiece;
// See SharedOutputLayer::forward().
constexpr size_t kReferenceNeurons = 16;
bool too_large(float sum) { return !(sum <= 1e20f); }  // true for NaN too

// Reserves room for `count` elements and more, so that batches that grow a little do not take new memory each
// time: assign(), and resize() of an empty vector, take only what they need.
template <class T>
void make_room(std::vector<T>& values, size_t count) {
  if (values.capacity() < count) values.reserve(2 * count);
}

// Targets in the order of one of their indices, by counting sort.
struct SortedTargets {
  std::vector<Target> targets;
  std::vector<size_t> offsets;  // [keys + 1] into targets

  void sort_by(uint32_t Target::*key, const std::vector<Target>& from, size_t keys) {
    make_room(offsets, keys + 1);
    offsets.assign(keys + 1, 0);
    for (const Target& target : from) ++offsets[target.*key + 1];
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
    targets.resize(from.size());
    for (const Target& target : from) targets[offsets[target.*key]++] = target;
    // Filling moved each offset to that of the next key.
    std::copy_backward(offsets.begin(), offsets.end() - 1, offsets.end());
    offsets[0] = 0;
  }
};

class SharedOutputLayer final : public OutputLayer {
 public:
  SharedOutputLayer(std::vector<Modelet*> modelets, const OutputOptions& options, const LabelSpread& spread,
                    ThreadPool& pool)
      : OutputLayer(std::move(modelets), options, spread, pool),
        products_(make_output_products(options.precision, pool)),
        gradients_(pool),
        gradient_rows_(pool) {
    for (const Modelet* modelet : modelets_) samplers_.emplace_back(*modelet, options);
  }

  void select(const Batch& batch, ConstMatrix hidden, uint64_t step) override;
  void gather() override;
  void forward(ConstMatrix hidden, ConstMatrix hidden_transposed, SampleRange range) override;
  double gradient_square_sum(ConstMatrix hidden, const float* factor, const float* target_factor) override;
  void update(ConstMatrix hidden, const float* factor, const float* target_factor,
              const UpdateRule& rule) override;
  size_t active_neurons() const override { return neurons_.size(); }

 private:
  void select_in_modelets(const Batch& batch, ConstMatrix hidden, uint64_t step);
  void activate(SampleRange range);
  bool raise_references(SampleRange range);
  void mark_what_is_no_number(SampleRange range);
  void logits_of_piece(const ActiveRange& piece, SampleRange range);
  void negative_of_samples(size_t begin, size_t end);
  template <class Use>
  void for_each_gradient_piece(const float* factor, const float* target_factor, const Use& use);
  size_t first_target(const ActiveRange& piece) const { return by_neuron_.offsets[piece.first]; }
  size_t last_target(const ActiveRange& piece) const { return by_neuron_.offsets[piece.first + piece.count]; }
  // The rows of statistics_ that belong to the direct path.
  Matrix scale_statistics() {
    return {statistics_.data() + kStatistics * columns_, statistics_rows() - kStatistics, columns_, columns_};
  }

  const Batch* batch_ = nullptr;  // of the step
  std::vector<ActiveSetSampler> samplers_;
  BatchLabels labels_;
  Queries queries_;
  std::unique_ptr<OutputProducts> products_;
  std::vector<ActiveNeuron> neurons_;
  std::vector<float> biases_;        // [active]
  std::vector<ActiveRange> pieces_;  // ranges of the products, divided into kPiece
  Scratch<float> activations_;       // [active, padded B]; logits of a piece until activate() has passed it

  std::vector<Target> targets_;
  SortedTargets by_sample_, by_neuron_;
  std::vector<float> target_logits_;  // of by_neuron_.targets

  AlignedVector<float> piece_statistics_;  // [pieces, padded B]
  ThreadScratch<float> gradients_;         // [kPiece, padded B] per thread, with respect to logits
  ThreadScratch<float> gradient_rows_;     // [kPiece, d] per thread, with respect to weights
  std::vector<double> square_sums_;        // [active] of gradient_square_sum
};

void SharedOutputLayer::select(const Batch& batch, ConstMatrix hidden, uint64_t step) {
  resize(batch.size(), hidden.cols);
  batch_ = &batch;
  neurons_.clear();
  targets_.clear();
  select_in_modelets(batch, hidden, step);
  for (uint32_t m = 0; m < modelets_.size(); ++m) {
    const ActiveSet& set = samplers_[m].set();
    const size_t first = neurons_.size();
    for (const uint32_t row : set.rows) neurons_.push_back({m, row});
    for (const Target& target : set.targets)
      targets_.push_back({target.sample, static_cast<uint32_t>(first) + target.active});
  }
  make_room(biases_, neurons_.size());
  biases_.assign(neurons_.size(), 0.0f);
  by_sample_.sort_by(&Target::sample, targets_, batch.size());
  by_neuron_.sort_by(&Target::active, by_sample_.targets, neurons_.size());
  target_logits_.resize(targets_.size());
}

// Modelets choose independently: at the same time or, where each retrieves with all threads, one after the
// other.
void SharedOutputLayer::select_in_modelets(const Batch& batch, ConstMatrix hidden, uint64_t step) {
  labels_.assign(batch, spread_, modelets_);
  const auto select_in = [&](size_t m) {
    samplers_[m].select(*modelets_[m], labels_.of(m), batch.first, hidden, queries_, step, pool_);
  };
  if (options_.sampling.mode == SamplingMode::kLsh && !modelets_.empty()) {
    queries_.take(*modelets_[0]->retrieval(), hidden, pool_, samplers_[0].turn(step));
    for (size_t m = 0; m < modelets_.size(); ++m) select_in(m);
  } else {
    pool_.for_pieces(modelets_.size(), 1, [&](size_t m, size_t) { select_in(m); });
  }
}

void SharedOutputLayer::gather() {
  pieces_.clear();
  const bool full = options_.sampling.mode == SamplingMode::kFull;
  for (const ActiveRange& range : products_->gather(modelets_, neurons_, full, samples_, width_, biases_))
    for (size_t i = 0; i < range.count; i += kPiece)
      pieces_.push_back({range.first + i, std::min(kPiece, range.count - i)});
  activations_.reserve(neurons_.size() * columns_);
  piece_statistics_.resize(std::max<size_t>(pieces_.size(), 1) * columns_);
  if (direct_) direct_->assign({batch_, neurons_, pieces_, by_neuron_.targets, by_neuron_.offsets});
}

// Logits become activations while they are in the cache, piece by piece. The maximum of all of them is not
// known then. Any reference near it serves as well, since it drops out of the softmax, and the first few
// neurons, which include labels of the batch, provide one.
void SharedOutputLayer::forward(ConstMatrix hidden, ConstMatrix hidden_transposed, SampleRange range) {
  const size_t begin = range.begin, columns = range.columns();
  products_->take_hidden(hidden, hidden_transposed, range);
  float* const reference = statistics_.data() + kReference * columns_ + begin;
  const ActiveRange some{0, pieces_.empty() ? 0 : std::min(kReferenceNeurons, pieces_[0].count)};
  if (some.count > 0 && loss_->normalised()) logits_of_piece(some, range);
  const float* const logits = some.count > 0 ? activations_.data() + begin : nullptr;
  loss_->maximum(logits, some.count, columns_, reference, columns);
  activate(range);
  if (raise_references(range)) {
    activate(range);
    mark_what_is_no_number(range);
  }

  float* const target = statistics_.data() + kTarget * columns_;
  std::fill_n(target + begin, columns, 0.0f);
  for (size_t t = 0; t < target_logits_.size(); ++t) {
    const uint32_t sample = by_neuron_.targets[t].sample;
    if (sample >= begin && sample < range.end) target[sample] += target_logits_[t];
  }

  // Few pieces, since each streams all active rows through the cache: one with one thread, else several equal
  // ones, so that threads end together.
  const size_t pieces = pool_.threads() == 1 ? 1 : 2 * pool_.threads();
  const size_t samples_a_piece = std::max<size_t>(24, (range.size() + pieces - 1) / pieces);
  pool_.for_pieces(range.size(), samples_a_piece, [&](size_t first, size_t last) {
    products_->positive(activations_.data(), begin + first, begin + last,
                        positive_.data() + (begin + first) * width_);
    negative_of_samples(begin + first, begin + last);
  });
}

// Activates all pieces, against the references.
void SharedOutputLayer::activate(SampleRange range) {
  const size_t begin = range.begin, columns = range.columns();
  float* const piece_sums = piece_statistics_.data() + begin;
  const float* const reference = statistics_.data() + kReference * columns_ + begin;
  float* const sum = statistics_.data() + kSum * columns_ + begin;
  pool_.for_pieces(pieces_.size(), 1, [&](size_t i, size_t) {
    logits_of_piece(pieces_[i], range);
    float* const logits = activations_.data() + pieces_[i].first * columns_ + begin;
    for (size_t t = first_target(pieces_[i]); t < last_target(pieces_[i]); ++t) {
      const Target& label = by_neuron_.targets[t];
      if (label.sample >= begin && label.sample < range.end)
        target_logits_[t] = activations_.data()[label.active * columns_ + label.sample];
    }
    loss_->activate(logits, pieces_[i].count, columns_, reference, piece_sums + i * columns_, columns);
    const float* const activations = logits;  // now
    if (direct_) direct_->read_activations(i, range, activations);
    products_->keep_activations(pieces_[i].first, pieces_[i].count, range, activations);
  });
  std::fill_n(sum, columns, 0.0f);
  for (size_t i = 0; i < pieces_.size(); ++i) kernels::add(piece_sums + i * columns_, sum, columns);
  if (direct_) direct_->fill_statistics(range, scale_statistics());
}

// Where exponentials have become so large that they might overflow, the maximum becomes the reference: true
// if there are such samples. This is rare, so the logits are simply computed again.
bool SharedOutputLayer::raise_references(SampleRange range) {
  const size_t begin = range.begin, columns = range.columns();
  const float* const sum = statistics_.data() + kSum * columns_ + begin;
  if (std::none_of(sum, sum + columns, too_large)) return false;

  float* const piece_maxima = piece_statistics_.data() + begin;
  pool_.for_pieces(pieces_.size(), 1, [&](size_t i, size_t) {
    logits_of_piece(pieces_[i], range);
    loss_->maximum(activations_.data() + pieces_[i].first * columns_ + begin, pieces_[i].count, columns_,
                   piece_maxima + i * columns_, columns);
  });
  float* const reference = statistics_.data() + kReference * columns_ + begin;
  for (size_t c = 0; c < columns; ++c) {
    if (!too_large(sum[c])) continue;
    for (size_t i = 0; i < pieces_.size(); ++i)
      reference[c] = std::max(reference[c], piece_maxima[i * columns_ + c]);
  }
  return true;
}

// Against the maximum, exponentials are large only if logits are not numbers.
void SharedOutputLayer::mark_what_is_no_number(SampleRange range) {
  float* const sum = statistics_.data() + kSum * columns_ + range.begin;
  std::replace_if(sum, sum + range.columns(), too_large, std::numeric_limits<float>::quiet_NaN());
}

void SharedOutputLayer::logits_of_piece(const ActiveRange& piece, SampleRange range) {
  float* const logits = activations_.data() + piece.first * columns_ + range.begin;
  products_->logits(piece.first, piece.count, range, biases_.data() + piece.first, logits);
  if (direct_) direct_->add_logits(piece, range, logits);
}

void SharedOutputLayer::negative_of_samples(size_t begin, size_t end) {
  for (size_t s = begin; s < end; ++s) {
    float* out = negative_.data() + s * width_;
    std::fill_n(out, width_, 0.0f);
    for (size_t t = by_sample_.offsets[s]; t < by_sample_.offsets[s + 1]; ++t)
      products_->add_row(by_sample_.targets[t].active, out);
    if (!loss_->normalised()) kernels::axpy(-1, out, positive_.data() + s * width_, width_);
  }
}

// Calls use(piece, gradient) for all pieces; gradient(i) is that of the piece's neuron i. Gradients with
// respect to the logits are written beside the activations, in the cache: the activations stay unchanged for
// another call.
template <class Use>
void SharedOutputLayer::for_each_gradient_piece(const float* factor, const float* target_factor,
                                                const Use& use) {
  gradients_.reserve(kPiece * columns_);
  gradient_rows_.reserve(kPiece * width_);
  pool_.for_pieces(pieces_.size(), 1, [&](size_t i, size_t) {
    const ActiveRange& piece = pieces_[i];
    float* const gradients = gradients_.mine();
    kernels::scale_columns(activations_.data() + piece.first * columns_, piece.count, columns_, factor,
                           gradients, columns_);
    for (size_t t = first_target(piece); t < last_target(piece); ++t) {
      const Target& target = by_neuron_.targets[t];
      gradients[(target.active - piece.first) * columns_ + target.sample] -= target_factor[target.sample];
    }
    float* const rows = gradient_rows_.mine();
    products_->gradient_rows(piece.count, gradients, rows);
    use(piece, [&](size_t a) {
      return RowGradient{rows + a * width_, kernels::sum(gradients + a * columns_, columns_)};
    });
  });
}

double SharedOutputLayer::gradient_square_sum(ConstMatrix, const float* factor, const float* target_factor) {
  square_sums_.resize(neurons_.size());  // added in order: the same whatever the threads
  for_each_gradient_piece(factor, target_factor, [&](const ActiveRange& piece, const auto& gradient) {
    for (size_t a = 0; a < piece.count; ++a) {
      const RowGradient row = gradient(a);
      square_sums_[piece.first + a] =
          double{kernels::sum_squares(row.weights, width_)} + double{row.bias} * row.bias;
    }
  });
  return std::accumulate(square_sums_.begin(), square_sums_.end(), 0.0);
}

void SharedOutputLayer::update(ConstMatrix, const float* factor, const float* target_factor,
                               const UpdateRule& rule) {
  for_each_gradient_piece(factor, target_factor, [&](const ActiveRange& piece, const auto& gradient) {
    const auto row = [&](size_t a) {
      const ActiveNeuron neuron = neurons_[piece.first + a];
      return ParameterRow{modelets_[neuron.modelet]->parameters(), neuron.row};
    };
    const auto gradients = [&](size_t first, std::span<RowGradient> rows) {
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = gradient(first + i);
    };
    update_rows(piece.count, neurons_.size() - piece.first, rule, row, gradients);
    for (size_t a = piece.first; a < piece.first + piece.count; ++a)
      if (Retrieval* retrieval = modelets_[neurons_[a].modelet]->retrieval())
        retrieval->changed[neurons_[a].row] = 1;
  });
}

}  // namespace

std::unique_ptr<OutputLayer> make_shared_output_layer(std::vector<Modelet*> modelets,
                                                      const OutputOptions& options, const LabelSpread& spread,
                                                      ThreadPool& pool) {
  return std::make_unique<SharedOutputLayer>(std::move(modelets), options, spread, pool);
}

}  // namespace modelet::shard
