// Output layer with one active set for the whole batch.
//
// Logits are kept transposed, [active, padded B]. In this layout no product needs packing: weight rows and
// hidden rows are contiguous where the GEMM wants them so, and the softmax of all samples is computed
// column-wise without horizontal sums.
#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "shard/kernels/kernels.h"
#include "shard/output_layer.h"

namespace modelet::shard {
namespace {

// Active neurons that are processed together: their logits for 256 samples fit into L2. A multiple of the
// GEMM's tile.
constexpr size_t kPiece = 96;
constexpr size_t kRowsAhead = 4;  // rows that are fetched before they are updated

// Targets in the order of one of their indices, by counting sort.
struct GroupedTargets {
  std::vector<Target> targets;
  std::vector<size_t> offsets;  // [groups + 1] into targets

  void group(const std::vector<Target>& from, uint32_t Target::*key, size_t groups) {
    offsets.assign(groups + 1, 0);
    for (const Target& target : from) ++offsets[target.*key + 1];
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
    targets.resize(from.size());
    for (const Target& target : from) targets[offsets[target.*key]++] = target;
    std::copy_backward(offsets.begin(), offsets.end() - 1,
                       offsets.end());  // filling moved each to the next one's place
    offsets[0] = 0;
  }
};

class SharedOutputLayer final : public OutputLayer {
 public:
  SharedOutputLayer(std::vector<Modelet*> modelets, const Experiment& experiment, const LabelSpread& spread,
                    uint64_t labels, ThreadPool& pool)
      : OutputLayer(std::move(modelets), experiment, pool), spread_(spread), gradient_rows_(pool.threads()) {
    for (const Modelet* modelet : modelets_) samplers_.emplace_back(*modelet, experiment, labels);
  }

  void select(const Batch& batch, ConstMatrix hidden, uint64_t step) override;
  void forward(ConstMatrix hidden, ConstMatrix hidden_transposed) override;
  double gradient_square_sum(ConstMatrix hidden, const float* factor, const float* target_factor) override;
  void update(ConstMatrix hidden, const float* factor, const float* target_factor,
              const UpdateRule& rule) override;
  size_t active_neurons() const override { return neurons_.size(); }

 private:
  struct Neuron {
    uint32_t modelet, row;
  };
  // Active neurons [first, first + count) of one matrix of weight rows: the gathered rows, or a whole
  // modelet.
  struct Run {
    const float* weights;
    size_t first, count;
  };

  void select_in_modelets(const Batch& batch, ConstMatrix hidden, uint64_t step);
  void gather(size_t width);
  void logits_of_piece(const Run& piece, ConstMatrix hidden_transposed);
  void positive_of_samples(size_t begin, size_t end);
  void negative_of_samples(size_t begin, size_t end);
  template <class Use>
  void for_each_gradient_row(ConstMatrix hidden, const float* factor, const float* target_factor,
                             const Use& use);
  const float* weights_of(size_t active) const;
  size_t first_target(const Run& piece) const { return by_neuron_.offsets[piece.first]; }
  size_t last_target(const Run& piece) const { return by_neuron_.offsets[piece.first + piece.count]; }

  const LabelSpread& spread_;
  std::vector<ActiveSetSampler> samplers_;
  QueryCodes codes_;
  std::vector<Neuron> neurons_;     // [active]
  std::vector<Run> runs_, pieces_;  // pieces_: the runs cut into kPiece
  AlignedVector<float> gathered_;   // [active, d], unless all neurons are active
  AlignedVector<float> logits_;     // [active, padded B]; later activations, later gradients
  bool logits_are_gradients_ = false;

  std::vector<Target> targets_;
  GroupedTargets by_sample_, by_neuron_;
  std::vector<float> target_logits_;  // of by_neuron_.targets

  AlignedVector<float> piece_statistics_;            // [pieces, padded B]
  std::vector<AlignedVector<float>> gradient_rows_;  // [kPiece, d] a thread
};

void SharedOutputLayer::select(const Batch& batch, ConstMatrix hidden, uint64_t step) {
  resize(batch.size(), hidden.cols);
  neurons_.clear();
  runs_.clear();
  targets_.clear();
  select_in_modelets(batch, hidden, step);
  const bool full = experiment_.sampling.mode == SamplingMode::kFull;
  for (uint32_t m = 0; m < modelets_.size(); ++m) {
    const ActiveSet& set = samplers_[m].set();
    const size_t first = neurons_.size();
    for (const uint32_t row : set.rows) neurons_.push_back({m, row});
    for (const Target& target : set.targets)
      targets_.push_back({target.sample, static_cast<uint32_t>(first) + target.active});
    if (full) runs_.push_back({modelets_[m]->parameters().row(0), first, set.rows.size()});
  }
  if (!full) gather(hidden.cols);

  pieces_.clear();
  for (const Run& run : runs_)
    for (size_t i = 0; i < run.count; i += kPiece)
      pieces_.push_back({run.weights + i * width_, run.first + i, std::min(kPiece, run.count - i)});

  by_sample_.group(targets_, &Target::sample, batch.size());
  by_neuron_.group(by_sample_.targets, &Target::active, neurons_.size());
  target_logits_.resize(targets_.size());
}

// Modelets choose independently: side by side, or, where each retrieves with all threads, one after the
// other.
void SharedOutputLayer::select_in_modelets(const Batch& batch, ConstMatrix hidden, uint64_t step) {
  const auto select_in = [&](size_t m) {
    samplers_[m].select(*modelets_[m], batch, spread_, hidden, codes_, step, pool_);
  };
  if (experiment_.sampling.mode == SamplingMode::kLsh && !modelets_.empty()) {
    codes_.hash(*modelets_[0]->retrieval(), hidden, pool_);
    for (size_t m = 0; m < modelets_.size(); ++m) select_in(m);
  } else {
    pool_.for_pieces(modelets_.size(), 1, [&](size_t m, size_t) { select_in(m); });
  }
}

// Brings the active rows together once: every product of the step then reads contiguous memory.
void SharedOutputLayer::gather(size_t width) {
  if (gathered_.size() < neurons_.size() * width) gathered_.resize(neurons_.size() * width);
  pool_.for_pieces(neurons_.size(), kPiece, [&](size_t begin, size_t end) {
    for (size_t a = begin; a < end; ++a) {
      const float* row = modelets_[neurons_[a].modelet]->parameters().row(neurons_[a].row);
      std::copy_n(row, width, gathered_.data() + a * width);
    }
  });
  if (!neurons_.empty()) runs_.push_back({gathered_.data(), 0, neurons_.size()});
}

const float* SharedOutputLayer::weights_of(size_t active) const {
  for (const Run& run : runs_)
    if (active < run.first + run.count) return run.weights + (active - run.first) * width_;
  MODELET_CHECK(false, "active neuron out of range");
  return nullptr;
}

void SharedOutputLayer::forward(ConstMatrix hidden, ConstMatrix hidden_transposed) {
  if (logits_.size() < neurons_.size() * columns_) logits_.resize(neurons_.size() * columns_);
  logits_are_gradients_ = false;
  piece_statistics_.resize(std::max<size_t>(pieces_.size(), 1) * columns_);
  float* maximum = statistics_.data() + kMaximum * columns_;
  float* sum = statistics_.data() + kSum * columns_;
  float* target = statistics_.data() + kTarget * columns_;

  pool_.for_pieces(pieces_.size(), 1, [&](size_t i, size_t) {
    logits_of_piece(pieces_[i], hidden_transposed);
    const float* logits = logits_.data() + pieces_[i].first * columns_;
    loss_->maximum(logits, pieces_[i].count, columns_, piece_statistics_.data() + i * columns_, columns_);
    for (size_t t = first_target(pieces_[i]); t < last_target(pieces_[i]); ++t)
      target_logits_[t] = logits_[by_neuron_.targets[t].active * columns_ + by_neuron_.targets[t].sample];
  });
  kernels::column_max(piece_statistics_.data(), pieces_.size(), columns_, maximum, columns_);

  pool_.for_pieces(pieces_.size(), 1, [&](size_t i, size_t) {
    loss_->activate(logits_.data() + pieces_[i].first * columns_, pieces_[i].count, columns_, maximum,
                    piece_statistics_.data() + i * columns_, columns_);
  });
  std::fill_n(sum, 2 * columns_, 0.0f);  // sums and target sums lie side by side
  for (size_t i = 0; i < pieces_.size(); ++i)
    kernels::add(piece_statistics_.data() + i * columns_, sum, columns_);
  for (size_t t = 0; t < target_logits_.size(); ++t)
    target[by_neuron_.targets[t].sample] += target_logits_[t];

  // As few pieces as keep the threads busy: each piece streams all active rows through the cache.
  const size_t samples_a_piece = std::max<size_t>(24, (hidden.rows / (4 * pool_.threads()) + 5) / 6 * 6);
  pool_.for_pieces(samples_, samples_a_piece, [&](size_t begin, size_t end) {
    positive_of_samples(begin, end);
    negative_of_samples(begin, end);
  });
}

void SharedOutputLayer::logits_of_piece(const Run& piece, ConstMatrix hidden_transposed) {
  float* logits = logits_.data() + piece.first * columns_;
  std::array<float, kPiece> biases;
  for (size_t i = 0; i < piece.count; ++i) {
    const Neuron neuron = neurons_[piece.first + i];
    biases[i] = modelets_[neuron.modelet]->parameters().bias(neuron.row);
  }
  kernels::gemm({.m = piece.count,
                 .n = columns_,
                 .k = width_,
                 .a = piece.weights,
                 .a_row = width_,
                 .a_col = 1,
                 .b = hidden_transposed.data,
                 .b_row = hidden_transposed.stride,
                 .c = logits,
                 .c_row = columns_,
                 .row_start = biases.data()});
}

void SharedOutputLayer::positive_of_samples(size_t begin, size_t end) {
  float* out = positive_.data() + begin * width_;
  if (runs_.empty()) std::fill_n(out, (end - begin) * width_, 0.0f);
  for (size_t r = 0; r < runs_.size(); ++r)
    kernels::gemm({.m = end - begin,
                   .n = width_,
                   .k = runs_[r].count,
                   .a = logits_.data() + runs_[r].first * columns_ + begin,
                   .a_row = 1,
                   .a_col = columns_,
                   .b = runs_[r].weights,
                   .b_row = width_,
                   .c = out,
                   .c_row = width_,
                   .accumulate = r > 0});
}

void SharedOutputLayer::negative_of_samples(size_t begin, size_t end) {
  for (size_t s = begin; s < end; ++s) {
    float* out = negative_.data() + s * width_;
    std::fill_n(out, width_, 0.0f);
    for (size_t t = by_sample_.offsets[s]; t < by_sample_.offsets[s + 1]; ++t)
      kernels::add(weights_of(by_sample_.targets[t].active), out, width_);
    if (!loss_->normalised()) kernels::axpy(-1, out, positive_.data() + s * width_, width_);
  }
}

// Calls use(modelet, row, gradient, bias gradient) for every active neuron.
template <class Use>
void SharedOutputLayer::for_each_gradient_row(ConstMatrix hidden, const float* factor,
                                              const float* target_factor, const Use& use) {
  pool_.for_pieces(pieces_.size(), 1, [&](size_t i, size_t) {
    const Run& piece = pieces_[i];
    float* logits = logits_.data() + piece.first * columns_;
    if (!logits_are_gradients_) {
      kernels::scale_columns(logits, piece.count, columns_, factor, columns_);
      for (size_t t = first_target(piece); t < last_target(piece); ++t) {
        const Target& target = by_neuron_.targets[t];
        logits_[target.active * columns_ + target.sample] -= target_factor[target.sample];
      }
    }
    AlignedVector<float>& rows = gradient_rows_[pool_.thread_index()];
    if (rows.size() < kPiece * width_) rows.resize(kPiece * width_);
    kernels::gemm({.m = piece.count,
                   .n = width_,
                   .k = samples_,
                   .a = logits,
                   .a_row = columns_,
                   .a_col = 1,
                   .b = hidden.data,
                   .b_row = hidden.stride,
                   .c = rows.data(),
                   .c_row = width_});
    for (size_t a = 0; a < piece.count; ++a) {
      if (a + kRowsAhead < piece.count) {
        const Neuron& ahead = neurons_[piece.first + a + kRowsAhead];
        modelets_[ahead.modelet]->parameters().prefetch(ahead.row);
      }
      use(piece.first + a, rows.data() + a * width_, kernels::sum(logits + a * columns_, columns_));
    }
  });
  logits_are_gradients_ = true;
}

double SharedOutputLayer::gradient_square_sum(ConstMatrix hidden, const float* factor,
                                              const float* target_factor) {
  std::vector<double> sums(neurons_.size());  // added in order: the same whatever the threads
  for_each_gradient_row(
      hidden, factor, target_factor, [&](size_t active, const float* gradient, float bias_gradient) {
        sums[active] = double{kernels::sum_squares(gradient, width_)} + double{bias_gradient} * bias_gradient;
      });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

void SharedOutputLayer::update(ConstMatrix hidden, const float* factor, const float* target_factor,
                               const UpdateRule& rule) {
  for_each_gradient_row(hidden, factor, target_factor,
                        [&](size_t active, float* gradient, float bias_gradient) {
                          Modelet& modelet = *modelets_[neurons_[active].modelet];
                          const uint32_t row = neurons_[active].row;
                          modelet.parameters().update(row, gradient, bias_gradient, rule);
                          if (Retrieval* retrieval = modelet.retrieval()) retrieval->changed[row] = 1;
                        });
}

}  // namespace

std::unique_ptr<OutputLayer> make_shared_output_layer(std::vector<Modelet*> modelets,
                                                      const Experiment& experiment, const LabelSpread& spread,
                                                      uint64_t labels, ThreadPool& pool) {
  return std::make_unique<SharedOutputLayer>(std::move(modelets), experiment, spread, labels, pool);
}

}  // namespace modelet::shard
