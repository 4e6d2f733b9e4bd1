#include "node_agent/train/data/training_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "node_agent/train/data/label_selection.h"
#include "node_agent/train/data/private_samples.h"

namespace modelet::agent {
namespace {

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

// How many samples an owner has is not told in an error either.
shard::RowSplit split_of(const TrainJob& job, size_t rows) {
  try {
    return shard::split_rows(rows, job.experiment.data.validation, job.experiment.train.seed);
  } catch (const UsageError& error) {
    if (is_private(job.experiment)) refuse_own_samples(job, error);
    throw;
  }
}

// How samples are drawn.
Experiment::Train drawn(const TrainJob& job) {
  Experiment::Train train = job.experiment.train;
  if (is_private(job.experiment) && job.former_groups > 0) train.seed = mix64(train.seed ^ mix64(job.former_groups));
  return train;
}

// What is computed of all training samples is not known where each replica has only its own.
void require_separable(const Experiment::Model& model) {
  if (model.centroids || model.classifiers > 0)
    throw UsageError(
        "model.centroids and model.classifiers are computed of all training samples, and here each replica has "
        "samples of its own: set model.centroids = false and model.classifiers = 0");
}

}  // namespace

TrainingData::TrainingData(const TrainJob& job, const Sharding& sharding, ThreadPool& pool,
                           const OnPreparing& on_preparing)
    : shared_(job.samples == nullptr ? shared_samples(job) : nullptr),
      source_(shared_ ? *shared_ : *job.samples),
      train_(source_.train(output_neurons(sharding.held()), on_preparing)),
      test_(source_.test(train_, on_preparing)),
      features_(source_.feature_rows(train_)),
      samples_of_run_(job.shape.train_rows),
      split_(split_of(job, train_.rows())),
      feed_(train_, source_.trained(train_, std::move(split_.train)), drawn(job), pool,
            {static_cast<uint32_t>(job.replica()), static_cast<uint32_t>(job.replicas()),
             source_.of_replica()},
            source_.unlabelled_weight()) {
  if (source_.of_replica()) require_separable(job.experiment.model);
  require_choice(job.experiment.model.loss, train_, job.experiment.data.train);
  require_items(job.experiment.model, train_, job.experiment.data.train);
  require_items(job.experiment.model, test_, job.experiment.data.test);
  source_.require_planned(train_, test_);
}

std::vector<uint32_t> TrainingData::training_rows() const {
  std::vector<uint32_t> rows;
  std::ranges::set_difference(shard::all_rows(train_.rows()), split_.validation, std::back_inserter(rows));
  return source_.trained(train_, std::move(rows));
}

void TrainingData::complete_validation_labels(comm::Group& replica, comm::Tag tag) {
  if (std::exchange(validation_has_labels_, true) || source_.has_all_labels()) return;
  feed_.finish_next();  // nobody reads the samples now
  complete_labels(train_, split_.validation, replica, tag);
}

}  // namespace modelet::agent
