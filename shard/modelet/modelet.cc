#include "shard/modelet/modelet.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/array/padding.h"
#include "base/error.h"
#include "base/experiment/memory.h"
#include "base/rng.h"
#include "shard/kernels/ids.h"

namespace modelet::shard {
namespace {

// The first scale of the centroids' cosines: about the size that it had after training on several data sets.
constexpr float kFirstScale = 4;

Parameters::Shape parameter_shape(const ModeletSpec& spec, const FeatureRows* features) {
  if (spec.kind == LayerKind::kInput) {
    MODELET_CHECK(features == nullptr || features->count() == spec.inputs, "rows of the input layer");
    return {.rows = spec.inputs + 1,
            .cols = spec.neurons(),
            .first_column = spec.begin,
            .numbers = features == nullptr ? std::span<const uint32_t>() : features->ids(),
            .beyond = features == nullptr ? spec.inputs : features->features()};
  }
  return {.rows = spec.neurons(), .cols = spec.inputs, .with_bias = true};
}

Precision parameter_precision(const ModeletSpec& spec, Precision of_wide_layers) {
  return value_bytes(spec.kind, of_wide_layers) == sizeof(float) ? Precision::kFp32 : Precision::kBf16;
}

// One family for all modelets of the layer: the seed does not depend on the modelet.
hashing::IndexOptions index_options(const ModeletSpec& spec, const ModeletOptions& options) {
  const Experiment::Sampling& sampling = options.sampling;
  return {.hash = {.kind = sampling.family,
                   .dim = spec.inputs,
                   .tables = sampling.tables,
                   .bits = sampling.bits,
                   .seed = options.seed},
          .bucket = sampling.bucket,
          .centre = sampling.centre};
}

// This modelet's share of the layer's common rows.
size_t common_rows(const ModeletSpec& spec, const ModeletOptions& options) {
  const size_t modelets = options.output_modelets;
  return std::min<size_t>(spec.neurons(), (options.sampling.common + modelets - 1) / modelets);
}

}  // namespace

ModeletOptions modelet_options(const Experiment& experiment, bool trainable) {
  return {.precision = experiment.model.precision,
          .optimizer = trainable ? std::optional(experiment.optimizer.kind) : std::nullopt,
          .moments = trainable && experiment.cluster.replicas > 1
                         ? rule_values_per_parameter(experiment.cluster.rule)
                         : 0,
          .sampling = experiment.sampling,
          .direct_path = experiment.model.centroids,
          .most_pairs = experiment.model.centroid_pairs,
          .classifiers = has_classifiers(experiment.model),
          .output_modelets = experiment.modelets.output_modelets,
          .seed = experiment.train.seed};
}

// Rounding is keyed by the place in the layer, so rows of the input layer, which are spread over modelets,
// have one seed, whatever the partition.
Parameters Modelet::make_parameters(const ModeletSpec& spec, const ModeletOptions& options,
                                    const FeatureRows* features) {
  const uint64_t first_row = spec.kind == LayerKind::kInput ? 0 : spec.begin;
  return {parameter_shape(spec, features), parameter_precision(spec, options.precision), options.optimizer,
          Rng(options.seed, {kStreamRounding, spec.layer, first_row}).next()};
}

Modelet::Modelet(const ModeletSpec& spec, const ModeletOptions& options, Parameters parameters)
    : spec_(spec),
      seed_(options.seed),
      parameters_(std::move(parameters)),
      common_(common_rows(spec, options)) {
  // Kernels store whole vectors; parse_experiment() accepts no other width.
  MODELET_CHECK(parameters_.cols() % kVectorFloats == 0, "width of a layer");
  for (uint64_t i = 0; i < options.moments; ++i)
    moments_.emplace_back(Parameters::Shape{.rows = parameters_.rows(),
                                            .cols = parameters_.cols(),
                                            .with_bias = parameters_.has_bias()},
                          Precision::kFp32, std::nullopt, 0);
  if (spec.kind == LayerKind::kOutput && options.direct_path)
    direct_ = Direct{
        .pairs = Pairs(options.most_pairs, spec.begin, spec.neurons()),
        .scales = Parameters({.rows = 1, .cols = kVectorFloats}, Precision::kFp32, options.optimizer, 0),
        .classifiers = {},
        .earlier = {}};
  if (direct_ && options.classifiers) direct_->classifiers = Classifiers::none(direct_->pairs);
  if (spec.kind == LayerKind::kOutput && retrieves_neurons(options.sampling.mode))
    retrieval_ = Retrieval{.query_mean = std::vector<float>(spec.inputs),
                           .changed = std::vector<uint8_t>(spec.neurons())};
  if (!retrieval_) return;
  if (uses_hash_tables(options.sampling)) {
    retrieval_->tables.emplace(index_options(spec, options), spec.neurons());
  } else {
    retrieval_->low_rank.emplace(spec.neurons(), spec.inputs, options.sampling.rank);
  }
}

void Modelet::initialise(float output_bias) {
  const bool input = spec_.kind == LayerKind::kInput;
  // Input layer: samples are sums of a few rows, so their scale does not follow from the number of features.
  // Others: He et al., ICCV 2015, halved for the output layer, whose logits should start near zero.
  const float deviation =
      input ? 0.1f
            : std::sqrt((spec_.kind == LayerKind::kHidden ? 2.0f : 1.0f) / static_cast<float>(spec_.inputs));
  // Uniform, because normal numbers take several times as long to draw. Numbers from -a to a have the
  // deviation a / sqrt(3).
  const float largest = std::sqrt(3.0f) * deviation;
  const size_t rows = input ? parameters_.rows() - 1 : parameters_.rows();  // the input's bias row stays zero
  std::vector<float> values(parameters_.cols());
  for (size_t r = 0; r < rows; ++r) {
    // Keyed by what the row stands for and, for the input layer, by the column range, since a row is spread
    // over modelets.
    Rng rng(seed_, {kStreamInit, spec_.layer, input ? parameters_.number(r) : spec_.begin + r,
                    input ? spec_.begin : 0});
    for (float& value : values) value = largest * (2 * rng.uniform() - 1);
    parameters_.set_row(r, values.data());
  }
  if (spec_.kind == LayerKind::kOutput)
    for (size_t r = 0; r < parameters_.rows(); ++r) parameters_.bias(r) = output_bias;
  if (direct_) std::fill_n(direct_->scales.floats().row(0), kFrequencyClasses, kFirstScale);
  if (!retrieval_) return;
  if (retrieval_->tables) retrieval_->tables->build(parameters_.weights());
  choose_common();
}

void Modelet::choose_common() {
  if (common_ == 0) return;
  std::vector<std::pair<float, uint32_t>> ranking;
  ranking.reserve(parameters_.rows());
  for (uint32_t row = 0; row < parameters_.rows(); ++row)
    ranking.emplace_back(-parameters_.logit(row, retrieval_->query_mean.data()), row);
  std::partial_sort(ranking.begin(), ranking.begin() + static_cast<std::ptrdiff_t>(common_), ranking.end(),
                    [](const auto& a, const auto& b) {
                      return kernels::comes_before(a.first, a.second, b.first, b.second);
                    });
  retrieval_->common.clear();
  for (size_t i = 0; i < common_; ++i) retrieval_->common.push_back(ranking[i].second);
}

size_t Modelet::memory_bytes() const {
  size_t bytes = parameters_.memory_bytes();
  for (const Parameters& moment : moments_) bytes += moment.memory_bytes();
  if (retrieval_ && retrieval_->tables) bytes += retrieval_->tables->memory_bytes();
  if (retrieval_ && retrieval_->low_rank) bytes += retrieval_->low_rank->memory_bytes();
  if (direct_) bytes += direct_->memory_bytes();
  return bytes;
}

}  // namespace modelet::shard
