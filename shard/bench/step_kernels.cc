#include "shard/bench/step_kernels.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/aligned.h"
#include "base/experiment.h"
#include "base/rng.h"
#include "shard/bench/machine_rates.h"
#include "shard/kernels/kernels.h"
#include "shard/parameters.h"

namespace modelet::shard::bench {
namespace {

constexpr size_t kNeuronPiece = 96;   // active neurons of a parallel piece
constexpr size_t kSamplePiece = 16;   // samples of a parallel piece, in the input layer
constexpr size_t kFeaturePiece = 64;  // features of a parallel piece
constexpr size_t kRowsAhead = 4;      // rows that are fetched before they are updated
constexpr uint64_t kSeed = 1;         // any: the figures do not depend on it

AlignedVector<float> random_values(size_t count) {
  AlignedVector<float> values(count);
  Rng rng(kSeed);
  for (float& value : values) value = rng.uniform() - 0.5f;
  return values;
}

// The three products of the output layer, and its passes over the logits.
class OutputKernels {
 public:
  OutputKernels(ThreadPool& pool, const StepShape& shape)
      : pool_(pool),
        shape_(shape),
        columns_(kernels::padded(shape.batch)),
        rows_(random_values(shape.active * shape.width)),
        hidden_(random_values(columns_ * shape.width)),
        logits_(random_values(shape.active * columns_)),
        gradient_(shape.batch * shape.width),
        gradient_rows_(shape.active * shape.width),
        statistics_(2 * (shape.active / kNeuronPiece + 1) * columns_) {}

  double operations() const {
    return 2.0 * double(shape_.active) * double(shape_.batch) * double(shape_.width);
  }
  double logit_bytes() const { return double(shape_.active) * double(columns_) * sizeof(float); }

  // logits [active, padded batch] = rows [active, width] * hidden^T [width, padded batch]
  void logits() {
    pool_.for_pieces(shape_.active, kNeuronPiece, [&](size_t begin, size_t end) {
      kernels::gemm({.m = end - begin,
                     .n = columns_,
                     .k = shape_.width,
                     .a = &rows_[begin * shape_.width],
                     .a_row = shape_.width,
                     .a_col = 1,
                     .b = hidden_.data(),
                     .b_row = columns_,
                     .c = &logits_[begin * columns_],
                     .c_row = columns_});
    });
  }

  // hidden gradient [batch, width] = activations^T [batch, active] * rows
  void positive() {
    const size_t piece = std::max<size_t>(24, (shape_.batch / (4 * pool_.threads()) + 5) / 6 * 6);
    pool_.for_pieces(shape_.batch, piece, [&](size_t begin, size_t end) {
      kernels::gemm({.m = end - begin,
                     .n = shape_.width,
                     .k = shape_.active,
                     .a = &logits_[begin],
                     .a_row = 1,
                     .a_col = columns_,
                     .b = rows_.data(),
                     .b_row = shape_.width,
                     .c = &gradient_[begin * shape_.width],
                     .c_row = shape_.width});
    });
  }

  // gradient rows [active, width] = logit gradients [active, batch] * hidden [batch, width]
  void gradient_rows() {
    pool_.for_pieces(shape_.active, kNeuronPiece, [&](size_t begin, size_t end) {
      kernels::gemm({.m = end - begin,
                     .n = shape_.width,
                     .k = shape_.batch,
                     .a = &logits_[begin * columns_],
                     .a_row = columns_,
                     .a_col = 1,
                     .b = hidden_.data(),
                     .b_row = shape_.width,
                     .c = &gradient_rows_[begin * shape_.width],
                     .c_row = shape_.width});
    });
  }

  // Applied to their own results again and again: these stay ordinary numbers.
  void softmax() {
    pool_.for_pieces(shape_.active, kNeuronPiece, [&](size_t begin, size_t end) {
      float* maximum = &statistics_[2 * (begin / kNeuronPiece) * columns_];
      float* logits = &logits_[begin * columns_];
      kernels::column_max(logits, end - begin, columns_, maximum, columns_);
      kernels::column_exp_sum(logits, end - begin, columns_, maximum, maximum + columns_, columns_);
    });
  }
  void sigmoid() {
    pool_.for_pieces(shape_.active, kNeuronPiece, [&](size_t begin, size_t end) {
      kernels::column_sigmoid(&logits_[begin * columns_], end - begin, columns_,
                              &statistics_[2 * (begin / kNeuronPiece) * columns_], columns_);
    });
  }

 private:
  ThreadPool& pool_;
  const StepShape shape_;
  const size_t columns_;  // padded batch
  AlignedVector<float> rows_, hidden_, logits_, gradient_, gradient_rows_;
  AlignedVector<float> statistics_;  // two rows of columns_ a piece
};

// What reaches into a large parameter matrix: rows in random order, each next call other ones.
class RowKernels {
 public:
  RowKernels(ThreadPool& pool, const StepShape& shape)
      : pool_(pool),
        shape_(shape),
        parameters_({.rows = kBeyondCaches / (3 * sizeof(float) * shape.width),
                     .cols = shape.width,
                     .with_bias = true},
                    Precision::kFp32, OptimizerKind::kAdam, kSeed),
        order_(parameters_.rows()),
        gathered_(shape.active * shape.width),
        gradients_(random_values(kNeuronPiece * shape.width)),
        corrections_(optimizer_.beta1, optimizer_.beta2) {
    std::iota(order_.begin(), order_.end(), 0u);
    Rng rng(kSeed);
    for (size_t left = order_.size(); left > 1; --left)
      std::swap(order_[left - 1], order_[rng.below(static_cast<uint32_t>(left))]);
  }

  double update_bytes() const {
    return 2.0 * double(shape_.active) * double(parameters_.memory_bytes()) / double(parameters_.rows());
  }
  double gather_bytes() const { return 2.0 * double(gathered_.size()) * sizeof(float); }

  void gather() {
    const uint32_t* rows = next(shape_.active);
    pool_.for_pieces(shape_.active, kNeuronPiece, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i)
        std::copy_n(parameters_.stored_row<float>(rows[i]), shape_.width, &gathered_[i * shape_.width]);
    });
  }

  void adam() {
    const uint32_t* rows = next(shape_.active);
    const UpdateRule rule{optimizer_, corrections_, 1e-3f};
    pool_.for_pieces(shape_.active, kNeuronPiece, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        if (i + kRowsAhead < end) parameters_.prefetch(rows[i + kRowsAhead]);
        parameters_.update(rows[i], &gradients_[(i - begin) * shape_.width], 1e-3f, rule);
      }
    });
  }

 private:
  // `count` rows that have not been touched for long.
  const uint32_t* next(size_t count) {
    if (at_ + count > order_.size()) at_ = 0;
    return &order_[std::exchange(at_, at_ + count)];
  }

  ThreadPool& pool_;
  const StepShape shape_;
  Parameters parameters_;
  std::vector<uint32_t> order_;
  size_t at_ = 0;
  AlignedVector<float> gathered_, gradients_;
  const Experiment::Optimizer optimizer_;
  const AdamCorrections corrections_;
};

// The input layer's two sums: over a sample's features, and over the samples that have a feature.
class InputKernels {
 public:
  InputKernels(ThreadPool& pool, const StepShape& shape)
      : pool_(pool),
        shape_(shape),
        weights_(kBeyondCaches / 2 / sizeof(float)),
        hidden_(random_values(shape.batch * shape.width)),
        features_(shape.batch * shape.features_per_row * kBatches),
        samples_(shape.batch * shape.features_per_row),
        values_(samples_.size(), 0.1f),
        sums_(samples_.size() / kSamplesOfFeature * shape.width) {
    Rng rng(kSeed);
    const size_t rows = weights_.size() / shape.width;
    for (uint32_t& feature : features_) feature = rng.below(static_cast<uint32_t>(rows));
    for (uint32_t& sample : samples_) sample = rng.below(static_cast<uint32_t>(shape.batch));
  }

  double operations() const { return 2.0 * double(samples_.size()) * double(shape_.width); }
  double row_bytes() const { return double(samples_.size()) * double(shape_.width) * sizeof(float); }

  void forward() {
    const uint32_t* features = &features_[batch_ * samples_.size()];
    batch_ = (batch_ + 1) % kBatches;
    pool_.for_pieces(shape_.batch, kSamplePiece, [&](size_t begin, size_t end) {
      for (size_t s = begin; s < end; ++s)
        kernels::weighted_row_sum(features + s * shape_.features_per_row,
                                  &values_[s * shape_.features_per_row], shape_.features_per_row,
                                  weights_.data(), shape_.width, nullptr, &hidden_[s * shape_.width],
                                  shape_.width);
    });
  }

  void gradient() {
    pool_.for_pieces(samples_.size() / kSamplesOfFeature, kFeaturePiece, [&](size_t begin, size_t end) {
      for (size_t f = begin; f < end; ++f)
        kernels::weighted_row_sum(&samples_[f * kSamplesOfFeature], &values_[f * kSamplesOfFeature],
                                  kSamplesOfFeature, hidden_.data(), shape_.width, nullptr,
                                  &sums_[f * shape_.width], shape_.width);
    });
  }

 private:
  static constexpr size_t kBatches = 16;          // different ones, so that caches do not learn them
  static constexpr size_t kSamplesOfFeature = 3;  // of a batch, about what real batches have

  ThreadPool& pool_;
  const StepShape shape_;
  AlignedVector<float> weights_, hidden_;
  std::vector<uint32_t> features_, samples_;
  std::vector<float> values_;
  AlignedVector<float> sums_;
  size_t batch_ = 0;
};

}  // namespace

double logits_flops(ThreadPool& pool, const StepShape& shape, double seconds) {
  OutputKernels output(pool, shape);
  return output.operations() * calls_per_second(seconds, [&] { output.logits(); });
}

std::vector<KernelRate> measure_step_kernels(ThreadPool& pool, const StepShape& shape, double seconds) {
  std::vector<KernelRate> rates;
  const auto add = [&](const char* name, Bound bound, double work, const std::function<void()>& call) {
    rates.push_back({name, bound, work * calls_per_second(seconds, call)});
  };
  rates.push_back({"logits", Bound::kArithmetic, logits_flops(pool, shape, seconds)});
  {
    OutputKernels output(pool, shape);
    add("hidden gradient", Bound::kArithmetic, output.operations(), [&] { output.positive(); });
    add("gradient rows", Bound::kArithmetic, output.operations(), [&] { output.gradient_rows(); });
    add("softmax", Bound::kUpdate, 3 * output.logit_bytes(), [&] { output.softmax(); });
    add("sigmoid", Bound::kUpdate, 2 * output.logit_bytes(), [&] { output.sigmoid(); });
  }
  {
    RowKernels rows(pool, shape);
    add("gather rows", Bound::kCopy, rows.gather_bytes(), [&] { rows.gather(); });
    add("lazy Adam", Bound::kUpdate, rows.update_bytes(), [&] { rows.adam(); });
  }
  InputKernels input(pool, shape);
  add("embedding bag", Bound::kRead, input.row_bytes(), [&] { input.forward(); });
  add("embedding bag gradient", Bound::kArithmetic, input.operations(), [&] { input.gradient(); });
  return rates;
}

}  // namespace modelet::shard::bench
