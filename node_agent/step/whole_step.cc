#include "node_agent/step/whole_step.h"

#include <vector>

#include "base/array/aligned.h"
#include "base/array/bf16.h"
#include "base/experiment/partition.h"
#include "base/rng.h"
#include "base/system/clock.h"
#include "comm/collectives/group.h"
#include "node_agent/step/exchange/sharding.h"
#include "node_agent/step/training_step.h"
#include "shard/bench/machine_rates.h"
#include "shard/data/batch/batch_feed.h"
#include "shard/data/batch/split.h"
#include "shard/data/store/csr.h"
#include "shard/data/store/dataset.h"
#include "shard/layers/network.h"
#include "shard/synth/synth.h"

namespace modelet::agent {
namespace {

constexpr size_t kBatches = 16;      // different batches
constexpr uint64_t kFirstSteps = 2;  // these touch memory for the first time
constexpr float kLearningRate = 1e-3f;
constexpr uint64_t kSeed = 1;  // any

double value_bytes(Precision precision) {
  return precision == Precision::kFp32 ? sizeof(float) : sizeof(Bf16);
}

// The number of rows, with Adam's two values for each weight, that is larger than any cache.
uint64_t rows_beyond_caches(size_t width, Precision precision) {
  return static_cast<uint64_t>(double(shard::bench::kBeyondCaches / 2) /
                               (3 * value_bytes(precision) * double(width)));
}

// Samples like Amazon-670K's, with as many features and labels as there are rows in the layers.
class MadeUpSamples {
 public:
  MadeUpSamples(const shard::bench::StepShape& shape, uint64_t rows_of_layer) {
    shard::SynthOptions options = shard::synth_preset("amazon-670k");
    options.features = options.labels = rows_of_layer;
    options.features_per_row = static_cast<double>(shape.features_per_row);
    shard::SynthGenerator generator(options);
    for (size_t row = 0; row < kBatches * shape.batch; ++row) {
      const shard::Sample sample = generator.sample(shard::Split::kTrain, row);
      features_.insert(features_.end(), sample.features.begin(), sample.features.end());
      values_.insert(values_.end(), sample.values.begin(), sample.values.end());
      labels_.insert(labels_.end(), sample.labels.begin(), sample.labels.end());
      feature_offsets_.push_back(features_.size());
      label_offsets_.push_back(labels_.size());
    }
    csr_ = {options.features, options.labels, feature_offsets_, features_, values_, label_offsets_, labels_};
  }

  const shard::CsrSamples& csr() const { return csr_; }

 private:
  std::vector<uint64_t> feature_offsets_ = {0}, label_offsets_ = {0};
  std::vector<uint32_t> features_, labels_;
  std::vector<float> values_;
  shard::CsrSamples csr_;
};

Experiment experiment_of(const shard::bench::StepShape& shape, Precision precision, uint64_t labels) {
  Experiment experiment;
  experiment.model.hidden = {static_cast<uint32_t>(shape.width)};
  experiment.model.precision = precision;
  experiment.sampling.sparsity = static_cast<float>(double(shape.active) / double(labels));
  experiment.train.batch = static_cast<uint32_t>(shape.batch);
  return experiment;
}

// Gives each row the same small numbers. The speed of a step does not depend on them, and random ones would
// take seconds.
void set_weights(shard::Network& network) {
  Rng rng(kSeed);
  for (const auto& modelet : network.modelets()) {
    shard::Parameters& parameters = modelet->parameters();
    std::vector<float> row(parameters.cols());
    for (float& weight : row) weight = 0.1f * (rng.uniform() - 0.5f);
    for (size_t r = 0; r < parameters.rows(); ++r) parameters.set_row(r, row.data());
  }
}

StepWork work_of(const shard::Batch& batch, size_t active, size_t width, shard::Network& network) {
  const shard::Parameters& input = network.modelets().front()->parameters();
  const shard::Parameters& output = network.output().modelets().front()->parameters();
  const double samples = double(batch.size()), neurons = double(active), d = double(width);
  const double rows = double(batch.unique_features.size()), entries = double(batch.features.size());
  const double lines =
      neurons * double(output.cache_lines_of_row()) + rows * double(input.cache_lines_of_row());
  return {.products = 3 * 2 * neurons * samples * d,
          .sums = 2 * 2 * entries * d,
          .bytes_read = (neurons + rows) * d * value_bytes(output.precision()),
          .bytes_changed = 2 * lines * double(kCacheLine)};
}

}  // namespace

MeasuredStep measure_step(ThreadPool& pool, const shard::bench::StepShape& shape, Precision precision,
                          double seconds) {
  const MadeUpSamples samples(shape, rows_beyond_caches(shape.width, precision));
  const shard::Dataset data = shard::Dataset::of(samples.csr(), Normalize::kNone);
  const Experiment experiment = experiment_of(shape, precision, data.labels());
  const DataShape data_shape = shard::describe_shape(data, data);
  const std::vector<ModeletSpec> partition = partition_model(experiment, data_shape);
  const Sharding sharding(partition, std::vector<uint32_t>(partition.size(), 0), 0, 1);
  shard::Network network(experiment, data_shape, partition, true, pool, shard::FeatureRows::of(data));
  set_weights(network);
  shard::BatchFeed feed(data, shard::all_rows(data.rows()), experiment.train, pool);
  const auto group = comm::make_solo_group();
  TrainingStep step(network, sharding, *group);

  MeasuredStep fastest;
  const Stopwatch all;
  for (uint64_t number = 0; number <= kFirstSteps || all.seconds() < seconds; ++number) {
    const Stopwatch watch;
    const shard::Batch& batch = feed.at(number, number + 2);
    const size_t active = step.run(batch, number, kLearningRate, false).active_neurons;
    const double passed = watch.seconds();
    if (number >= kFirstSteps && (fastest.seconds == 0 || passed < fastest.seconds))
      fastest = {passed, work_of(batch, active, shape.width, network)};
  }
  return fastest;
}

}  // namespace modelet::agent
