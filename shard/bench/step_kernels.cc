#include "shard/bench/step_kernels.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "base/array/aligned.h"
#include "base/array/padding.h"
#include "base/error.h"
#include "base/experiment/experiment.h"
#include "base/rng.h"
#include "shard/bench/machine_rates.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/row_sums.h"
#include "shard/layers/output/output_products.h"
#include "shard/modelet/modelet.h"
#include "shard/modelet/update_rows.h"

namespace modelet::shard::bench {
namespace {

constexpr size_t kNeuronPiece = OutputProducts::kLargestPiece;  // active neurons of a parallel piece
constexpr size_t kSamplePiece = 16;   // samples of a parallel piece, in the input layer
constexpr size_t kFeaturePiece = 64;  // features of a parallel piece
constexpr uint64_t kSeed = 1;         // any: the figures do not depend on it

AlignedVector<float> random_values(size_t count) {
  AlignedVector<float> values(count);
  Rng rng(kSeed);
  for (float& value : values) value = rng.uniform() - 0.5f;
  return values;
}

// The kernels of the output layer. Rows of a modelet's parameters are gathered and later updated, in random
// order, other rows each time. In between are three products and the passes over the logits.
class OutputKernels {
 public:
  // `rows`: of the modelet.
  OutputKernels(ThreadPool& pool, const StepShape& shape, Precision precision, size_t rows)
      : pool_(pool),
        shape_(shape),
        columns_(padded(shape.batch)),
        modelet_({.layer = 1, .kind = LayerKind::kOutput, .inputs = shape.width, .begin = 0, .end = rows},
                 ModeletOptions{.precision = precision, .optimizer = OptimizerKind::kAdam}),
        products_(make_output_products(precision, pool)),
        order_(rows),
        neurons_(shape.active),
        hidden_(random_values(columns_ * shape.width)),
        biases_(shape.active),
        logits_(random_values(shape.active * columns_)),
        gradient_(shape.batch * shape.width),
        gradient_rows_(shape.active * shape.width),
        statistics_(2 * (shape.active / kNeuronPiece + 1) * columns_),
        corrections_(optimizer_.beta1, optimizer_.beta2) {
    MODELET_CHECK(rows >= shape.active);
    std::iota(order_.begin(), order_.end(), 0u);
    Rng rng(kSeed);
    for (size_t left = order_.size(); left > 1; --left)
      std::swap(order_[left - 1], order_[rng.below(static_cast<uint32_t>(left))]);
    gather();
    for_neurons([&](size_t first, size_t count) {
      products_->keep_activations(first, count, whole(), &logits_[first * columns_]);
    });
  }

  double operations() const {
    return 2.0 * double(shape_.active) * double(shape_.batch) * double(shape_.width);
  }
  double logit_bytes() const { return double(shape_.active) * double(columns_) * sizeof(float); }
  // Bytes read and written: whole cache lines, as the memory moves them.
  double update_bytes() const {
    return 2.0 * double(shape_.active) * double(modelet_.parameters().cache_lines_of_row() * kCacheLine);
  }
  // Rows are read once and written once. In bf16 they are written twice, in two layouts, or once as floats.
  double gather_bytes() const {
    const bool fp32 = modelet_.parameters().precision() == Precision::kFp32;
    return double(shape_.active) * double(shape_.width) * (fp32 ? 2.0 * sizeof(float) : 3.0 * sizeof(Bf16));
  }

  void gather() {
    next_rows();
    Modelet* const modelets[] = {&modelet_};
    std::ranges::fill(biases_, 0.0f);
    products_->gather(modelets, neurons_, false, shape_.batch, shape_.width, biases_);
    products_->take_hidden({hidden_.data(), shape_.batch, shape_.width, shape_.width},
                           {hidden_.data(), shape_.width, columns_, columns_}, whole());
  }

  // [active, width] x [width, padded batch]
  void logits() {
    for_neurons([&](size_t first, size_t count) {
      products_->logits(first, count, whole(), &biases_[first], &logits_[first * columns_]);
    });
  }

  // [batch, active] x [active, width]
  void positive() {
    const size_t pieces = pool_.threads() == 1 ? 1 : 2 * pool_.threads();
    pool_.for_pieces(shape_.batch, std::max<size_t>(24, (shape_.batch + pieces - 1) / pieces),
                     [&](size_t begin, size_t end) {
                       products_->positive(logits_.data(), begin, end, &gradient_[begin * shape_.width]);
                     });
  }

  // [active, batch] x [batch, width]
  void gradient_rows() {
    for_neurons([&](size_t first, size_t count) {
      products_->gradient_rows(count, &logits_[first * columns_], &gradient_rows_[first * shape_.width]);
    });
  }

  // These run on their own results again and again; the values stay ordinary numbers.
  void softmax() {
    for_neurons([&](size_t first, size_t count) {
      float* maximum = &statistics_[2 * (first / kNeuronPiece) * columns_];
      float* logits = &logits_[first * columns_];
      kernels::column_max(logits, count, columns_, maximum, columns_);
      kernels::column_exp_sum(logits, count, columns_, maximum, maximum + columns_, columns_);
    });
  }
  void sigmoid() {
    for_neurons([&](size_t first, size_t count) {
      kernels::column_sigmoid(&logits_[first * columns_], count, columns_,
                              &statistics_[2 * (first / kNeuronPiece) * columns_], columns_);
    });
  }

  void adam() {
    next_rows();
    Parameters& p = modelet_.parameters();
    const UpdateRule rule{optimizer_, corrections_, 0, 1e-3f};
    for_neurons([&](size_t first, size_t count) {
      update_rows(
          count, shape_.active - first, rule,
          [&](size_t a) {
            return ParameterRow{p, neurons_[first + a].row};
          },
          [&](size_t a, std::span<RowGradient> gradients) {
            for (RowGradient& gradient : gradients) gradient = {&gradient_rows_[a++ * shape_.width], 1e-3f};
          });
    });
  }

 private:
  SampleRange whole() const { return {0, shape_.batch}; }

  template <class Body>
  void for_neurons(const Body& body) {
    pool_.for_pieces(shape_.active, kNeuronPiece,
                     [&](size_t begin, size_t end) { body(begin, end - begin); });
  }

  // Moves on to active neurons that have not been touched for long.
  void next_rows() {
    if (at_ + shape_.active > order_.size()) at_ = 0;
    for (size_t a = 0; a < shape_.active; ++a) neurons_[a] = {0, order_[at_ + a]};
    at_ += shape_.active;
  }

  ThreadPool& pool_;
  const StepShape shape_;
  const size_t columns_;  // padded batch
  Modelet modelet_;
  std::unique_ptr<OutputProducts> products_;
  std::vector<uint32_t> order_;  // the rows, in random order
  size_t at_ = 0;
  std::vector<ActiveNeuron> neurons_;
  AlignedVector<float> hidden_, biases_, logits_, gradient_, gradient_rows_;
  AlignedVector<float> statistics_;  // two rows of columns_ per piece
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
    for (size_t f = 0; f <= samples_.size() / kSamplesOfFeature; ++f)
      offsets_.push_back(f * kSamplesOfFeature);
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
      kernels::weighted_row_sums(&offsets_[begin], end - begin, samples_.data(), values_.data(),
                                 hidden_.data(), shape_.width, &sums_[begin * shape_.width], shape_.width);
    });
  }

 private:
  static constexpr size_t kBatches = 16;          // so many that caches do not keep the rows of all
  static constexpr size_t kSamplesOfFeature = 3;  // samples of a batch with a feature: about as in real data

  ThreadPool& pool_;
  const StepShape shape_;
  AlignedVector<float> weights_, hidden_;
  std::vector<uint32_t> features_, samples_;
  std::vector<uint64_t> offsets_;  // where each feature begins in samples_
  std::vector<float> values_;
  AlignedVector<float> sums_;
  size_t batch_ = 0;
};

// Number of rows of an output layer, with Adam's two values a weight, that take `bytes` of memory.
size_t rows_in(size_t bytes, const StepShape& shape, Precision precision) {
  const size_t value = precision == Precision::kFp32 ? sizeof(float) : sizeof(Bf16);
  return bytes / (3 * value * shape.width);
}

}  // namespace

double logits_flops(ThreadPool& pool, const StepShape& shape, Precision precision, double seconds) {
  OutputKernels output(pool, shape, precision, shape.active);
  return output.operations() * calls_per_second(seconds, [&] { output.logits(); });
}

double update_bytes(ThreadPool& pool, const StepShape& shape, size_t bytes, double seconds) {
  OutputKernels output(pool, shape, Precision::kFp32, rows_in(bytes, shape, Precision::kFp32));
  return output.update_bytes() * calls_per_second(seconds, [&] { output.adam(); });
}

std::vector<KernelRate> measure_output_kernels(ThreadPool& pool, const StepShape& shape, Precision precision,
                                               double seconds) {
  OutputKernels output(pool, shape, precision, rows_in(kBeyondCaches, shape, precision));
  const Bound product = precision == Precision::kFp32 ? Bound::kFp32 : Bound::kBf16;
  return {{"gather rows", Bound::kCopy,
           output.gather_bytes() * calls_per_second(seconds, [&] { output.gather(); })},
          {"logits", product, output.operations() * calls_per_second(seconds, [&] { output.logits(); })},
          {"hidden gradient", product,
           output.operations() * calls_per_second(seconds, [&] { output.positive(); })},
          {"gradient rows", product,
           output.operations() * calls_per_second(seconds, [&] { output.gradient_rows(); })},
          {"lazy Adam", Bound::kUpdate,
           output.update_bytes() * calls_per_second(seconds, [&] { output.adam(); })},
          {"softmax", Bound::kUpdate,
           3 * output.logit_bytes() * calls_per_second(seconds, [&] { output.softmax(); })},
          {"sigmoid", Bound::kUpdate,
           2 * output.logit_bytes() * calls_per_second(seconds, [&] { output.sigmoid(); })}};
}

std::vector<KernelRate> measure_input_kernels(ThreadPool& pool, const StepShape& shape, double seconds) {
  InputKernels input(pool, shape);
  return {{"embedding bag", Bound::kRead,
           input.row_bytes() * calls_per_second(seconds, [&] { input.forward(); })},
          {"embedding bag gradient", Bound::kFp32,
           input.operations() * calls_per_second(seconds, [&] { input.gradient(); })}};
}

}  // namespace modelet::shard::bench
