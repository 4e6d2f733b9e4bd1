#include "node_agent/train/data/private_samples.h"

#include <spdlog/fmt/fmt.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "base/system/log.h"

namespace modelet::agent {

PrivateSamples::PrivateSamples(const TrainJob& job, std::filesystem::path file)
    : job_(job), shared_(shared_samples(job)), file_(std::move(file)) {}

shard::Dataset load_public_test(const std::filesystem::path& path, Normalize normalize,
                                const shard::PrepareProgress& progress) {
  if (!shard::is_prepared(path)) return shard::load_dataset(path, normalize, {}, shard::no_labels(), progress);
  const shard::Dataset opened = shard::Dataset::open(path, false, shard::no_labels());
  return shard::load_dataset(path, normalize, opened.encoder(), shard::no_labels(), progress);
}

// How many samples have been read is not told.
shard::Dataset PrivateSamples::train(const std::vector<shard::NeuronRange>&,
                                     const OnPreparing& on_preparing) const {
  const std::string& name = job_.experiment.data.train;
  const std::string test = job_.test_file.empty() ? job_.experiment.data.test : job_.test_file.string();
  const shard::Dataset common = load_public_test(test, job_.experiment.data.normalize, on_preparing(test));
  try {
    shard::Dataset own = shard::load_dataset(
        file_, job_.experiment.data.normalize, common.encoder(), {},
        [report = on_preparing(name)](uint64_t, uint64_t, double done) { report(0, 0, done); });
    if (own.unknown_labels() > 0)
      log_for_owner("run {}: {}: {} labels of its {} samples are none of the run's, and are left out", job_.run, name,
                    own.unknown_labels(), own.rows());
    return own;
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    refuse_own_samples(job_, error);
  }
}

void refuse_own_samples(const TrainJob& job, const std::exception& error) {
  const std::string& name = job.experiment.data.train;
  log_for_owner("run {}: {}: {}", job.run, name, error.what());
  throw UsageError(name + ": the data that goes by this name on this node cannot be read; the log of its owner's agent "
                          "says why");
}

shard::Dataset PrivateSamples::test(const shard::Dataset& train, const OnPreparing& on_preparing) const {
  return shared_->test(train, on_preparing);
}

void PrivateSamples::require_planned(const shard::Dataset& train, const shard::Dataset& test) const {
  const DataShape& planned = job_.shape;
  const auto require = [&](const shard::Dataset& data, const std::string& name) {
    if (data.features() == planned.features && data.labels() == planned.labels &&
        data.encoder_checksum() == planned.encoder)
      return;
    throw UsageError(fmt::format(
        "{}: the run has {} features and {} labels, and this data has other ones: all owners and the test data must count "
        "the same ids, as the first line of an XMC text says",
        name, planned.features, planned.labels));
  };
  require(test, job_.experiment.data.test);
  require(train, job_.experiment.data.train);
}

shard::FeatureRows PrivateSamples::feature_rows(const shard::Dataset& train) const {
  return shard::FeatureRows(train.features());
}

std::vector<uint32_t> PrivateSamples::label_counts(const shard::Dataset& train) const {
  return std::vector<uint32_t>(train.labels(), 1);
}

uint64_t PrivateSamples::steps_per_epoch(uint64_t) const { return job_.experiment.cluster.epoch_steps; }

shard::LabelSpread PrivateSamples::spread() const { return shard::spread_of(job_.shape); }

}  // namespace modelet::agent
