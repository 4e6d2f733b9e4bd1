#include <filesystem>
#include <string>

#include "base/error.h"
#include "node_agent/train/data/sample_source.h"
#include "shard/modelet/state.h"

namespace modelet::agent {
namespace {

class SharedSamples final : public SampleSource {
 public:
  explicit SharedSamples(const TrainJob& job) : job_(job) {}

  shard::Dataset train(const std::vector<shard::NeuronRange>& neurons,
                       const OnPreparing& on_preparing) const override {
    const Experiment::Data& data = job_.experiment.data;
    if (job_.in_memory != nullptr) return shard::Dataset::of(job_.in_memory->train, data.normalize);
    if (is_private(job_.experiment))
      throw UsageError("data.train is " + data.train +
                       ", which only the agents of its owners have: submit the run to a pool, or give the files to "
                       "'modelet train --owners'");
    const shard::LabelSelection selection{.neurons = neurons, .alone = !job_.train_file.empty()};
    return shard::load_training_data(train_path(), data.normalize, encoding_of(job_.experiment), selection,
                                     on_preparing(train_path()));
  }

  shard::Dataset test(const shard::Dataset& train, const OnPreparing& on_preparing) const override {
    const Experiment::Data& data = job_.experiment.data;
    if (job_.in_memory != nullptr) return shard::Dataset::of(job_.in_memory->test, data.normalize);
    const std::string path = job_.test_file.empty() ? data.test : job_.test_file.string();
    return shard::load_dataset(path, data.normalize, train.encoder(), {}, on_preparing(path));
  }

  void require_planned(const shard::Dataset& train, const shard::Dataset& test) const override {
    const DataShape seen = shard::describe_shape(train, test), &planned = job_.shape;
    const uint64_t labels = planned.all_labels > 0 ? planned.all_labels : planned.labels;
    const bool same_shape = seen.features == planned.features && seen.labels == labels &&
                            seen.train_rows == planned.train_rows && seen.test_rows == planned.test_rows &&
                            seen.encoder == planned.encoder &&
                            (seen.occurring_features == planned.occurring_features ||
                             planned.occurring_features == 0 || job_.other_samples);
    if (same_shape && (seen.fingerprint == planned.fingerprint || planned.fingerprint == 0)) return;
    throw Error(
        "the data at " + train_path() + " is not the data that the run was planned for: this node sees " +
        std::to_string(seen.train_rows) + " samples, " + std::to_string(seen.features) + " features, " +
        std::to_string(seen.labels) + " labels" + (same_shape ? ", with other content" : ""));
  }

  bool of_replica() const override { return false; }
  shard::FeatureRows feature_rows(const shard::Dataset& train) const override {
    return agent::feature_rows(job_, train);
  }
  std::vector<uint32_t> label_counts(const shard::Dataset& train) const override {
    return shard::count_labels(train);
  }
  uint64_t steps_per_epoch(uint64_t own) const override { return own; }
  shard::LabelSpread spread() const override { return shard::spread_of(job_.shape); }

 private:
  std::string train_path() const {
    return job_.train_file.empty() ? job_.experiment.data.train : job_.train_file.string();
  }

  const TrainJob& job_;
};

}  // namespace

std::unique_ptr<const SampleSource> shared_samples(const TrainJob& job) {
  return std::make_unique<SharedSamples>(job);
}

shard::FeatureRows feature_rows(const TrainJob& job, const shard::Dataset& train) {
  if (!job.other_samples)  // earlier programs planned rows for all
    return job.shape.occurring_features > 0 ? shard::FeatureRows::of(train)
                                            : shard::FeatureRows(train.features());
  const shard::FeatureRows earlier =
      shard::stored_feature_rows(shard::Checkpoint::open(shard::find_checkpoint(job.resume)));
  return shard::FeatureRows::of(train, &earlier);
}

}  // namespace modelet::agent
