#include "node_agent/train/data/training_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"
#include "node_agent/train/data/label_selection.h"
#include "shard/modelet/state.h"

namespace modelet::agent {
namespace {

shard::Dataset load_train(const TrainJob& job, const Sharding& sharding, const TellPreparing& tell) {
  if (job.in_memory != nullptr)
    return shard::Dataset::of(job.in_memory->train, job.experiment.data.normalize);
  const shard::LabelSelection selection{.neurons = output_neurons(sharding.held()),
                                        .alone = !job.train_file.empty()};
  const Experiment::Data& data = job.experiment.data;
  const std::filesystem::path file =
      job.train_file.empty() ? std::filesystem::path(data.train) : job.train_file;
  return shard::load_training_data(file, data.normalize, encoding_of(job.experiment), selection, tell(file));
}

shard::Dataset load_test(const TrainJob& job, const shard::Dataset& train, const TellPreparing& tell) {
  const Experiment::Data& data = job.experiment.data;
  if (job.in_memory != nullptr) return shard::Dataset::of(job.in_memory->test, data.normalize);
  const std::filesystem::path file = job.test_file.empty() ? std::filesystem::path(data.test) : job.test_file;
  return shard::load_dataset(file, data.normalize, train.encoder(), {}, tell(file));
}

// A softmax over one label is always 1, so nothing would be learned.
void require_choice(Loss loss, const shard::Dataset& train, const std::string& path) {
  if (loss == Loss::kSoftmax && train.labels() < 2)
    throw UsageError("model.loss is softmax, which divides a sample between labels, and the data at " + path +
                     " has " + std::to_string(train.labels()) + ": set model.loss = \"sigmoid\"");
}

// If an item has a negative value, the weight of model.exclude_own makes it the best prediction instead of
// excluding it.
void require_items(const Experiment::Model& model, const shard::Dataset& data, const std::string& path) {
  if (!model.exclude_own) return;
  for (size_t row = 0; row < data.rows(); ++row) {
    const shard::Sample sample = data.sample(row);
    const auto negative = std::ranges::find_if(sample.values, [](float value) { return value < 0; });
    if (negative == sample.values.end()) continue;
    throw UsageError(fmt::format(
        "model.exclude_own needs positive values, and in the data at {} feature {} of sample {} (both from 0) "
        "is {}: set model.exclude_own = false, or leave out items with such values",
        path, sample.features[static_cast<size_t>(negative - sample.values.begin())], row, *negative));
  }
}

void require_planned(const DataShape& seen, const TrainJob& job) {
  const DataShape& planned = job.shape;
  const bool same_shape = seen.features == planned.features && seen.labels == planned.labels &&
                          seen.train_rows == planned.train_rows && seen.test_rows == planned.test_rows &&
                          seen.encoder == planned.encoder &&
                          (seen.occurring_features == planned.occurring_features ||
                           planned.occurring_features == 0 || job.other_samples);
  if (same_shape && (seen.fingerprint == planned.fingerprint || planned.fingerprint == 0)) return;
  const std::string path = job.train_file.empty() ? job.experiment.data.train : job.train_file.string();
  throw Error("the data at " + path + " is not the data that the run was planned for: this node sees " +
              std::to_string(seen.train_rows) + " samples, " + std::to_string(seen.features) + " features, " +
              std::to_string(seen.labels) + " labels" + (same_shape ? ", with other content" : ""));
}

}  // namespace

shard::FeatureRows feature_rows(const TrainJob& job, const shard::Dataset& train) {
  if (!job.other_samples)  // earlier programs planned rows for all
    return job.shape.occurring_features > 0 ? shard::FeatureRows::of(train)
                                            : shard::FeatureRows(train.features());
  const shard::FeatureRows earlier =
      shard::stored_feature_rows(shard::Checkpoint::open(shard::find_checkpoint(job.resume)));
  return shard::FeatureRows::of(train, &earlier);
}

TrainingData::TrainingData(const TrainJob& job, const Sharding& sharding, ThreadPool& pool,
                           const TellPreparing& tell)
    : train_(load_train(job, sharding, tell)),
      test_(load_test(job, train_, tell)),
      features_(feature_rows(job, train_)),
      split_(shard::split_rows(train_.rows(), job.experiment.data.validation, job.experiment.train.seed)),
      feed_(train_, std::move(split_.train), job.experiment.train, pool,
            {static_cast<uint32_t>(job.replica()), static_cast<uint32_t>(job.replicas())}) {
  require_choice(job.experiment.model.loss, train_, job.experiment.data.train);
  require_items(job.experiment.model, train_, job.experiment.data.train);
  require_items(job.experiment.model, test_, job.experiment.data.test);
  require_planned(shard::describe_shape(train_, test_), job);
}

std::vector<uint32_t> TrainingData::training_rows() const {
  std::vector<uint32_t> rows;
  std::ranges::set_difference(shard::all_rows(train_.rows()), split_.validation, std::back_inserter(rows));
  return rows;
}

void TrainingData::complete_validation_labels(comm::Group& replica, comm::Tag tag) {
  if (std::exchange(validation_has_labels_, true)) return;
  feed_.finish_next();  // nobody reads the samples now
  complete_labels(train_, split_.validation, replica, tag);
}

}  // namespace modelet::agent
