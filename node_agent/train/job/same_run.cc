#include "node_agent/train/job/same_run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "base/error.h"
#include "base/experiment/partition.h"

namespace modelet::agent {
namespace {

uint64_t samples_per_step(const Experiment& e) { return uint64_t{e.train.batch} * e.cluster.replicas; }

}  // namespace

// As text: many JSON readers keep only 53 bits of a number.
std::string fingerprint_text(const shard::Dataset& data) {
  return fmt::format("{:016x}", data.fingerprint());
}

void require_same_run(const shard::Checkpoint& checkpoint, const TrainJob& job) {
  const Experiment &then = checkpoint.index().experiment, &now = job.experiment;
  const bool both = retrieves_neurons(then.sampling.mode) && retrieves_neurons(now.sampling.mode);
  const bool tables = uses_hash_tables(then.sampling) && uses_hash_tables(now.sampling);
  const bool projections = both && !uses_hash_tables(then.sampling) && !uses_hash_tables(now.sampling);
  const DataShape &data_then = checkpoint.index().shape, &data_now = job.shape;
  const auto same_partition = [&] {
    return std::ranges::equal(
        partition_model(then, data_then), partition_model(now, data_now),
        [](const ModeletSpec& a, const ModeletSpec& b) { return a.name() == b.name(); });
  };
  struct Setting {
    const char* name;
    bool same, of_samples = false;  // of_samples: decides which samples a step sees
  };
  const Setting settings[] = {
      {"model.hidden", then.model.hidden == now.model.hidden},
      {"number of features or labels in the data",
       data_then.features == data_now.features && data_then.labels == data_now.labels},
      {"partition ([modelets])", same_partition()},
      {"model.precision", then.model.precision == now.model.precision},
      {"model.loss", then.model.loss == now.model.loss},
      {"model.centroids", then.model.centroids == now.model.centroids},
      {"model.classifiers", (then.model.classifiers > 0) == (now.model.classifiers > 0)},
      {"model.exclude_own", then.model.exclude_own == now.model.exclude_own},
      {"model.own_weight", then.model.own_weight == now.model.own_weight},
      {"model.centroid_pairs", then.model.centroid_pairs == now.model.centroid_pairs},
      {"data.validation", then.data.validation == now.data.validation, true},
      {"train.metric", now.data.validation == 0 ||
                           metric_of(then.train, data_then.labels) == metric_of(now.train, data_now.labels)},
      {"data.normalize", then.data.normalize == now.data.normalize},
      {"encoding of the text (data.format and its section, or the training text itself)",
       data_then.encoder == data_now.encoder},
      {"sampling.common", !both || then.sampling.common == now.sampling.common},
      {"sampling.retrieval", !both || tables || projections},
      {"sampling.rank", !projections || then.sampling.rank == now.sampling.rank},
      {"sampling.family", !tables || then.sampling.family == now.sampling.family},
      {"sampling.tables", !tables || then.sampling.tables == now.sampling.tables},
      {"sampling.bits", !tables || then.sampling.bits == now.sampling.bits},
      {"sampling.centre", !tables || then.sampling.centre == now.sampling.centre},
      {"optimizer.kind", then.optimizer.kind == now.optimizer.kind},
      // Owners come and go.
      {"train.batch x cluster.replicas",
       samples_per_step(then) == samples_per_step(now) ||
           (is_private(now) && then.train.batch == now.train.batch),
       true},
      {"train.seed", then.train.seed == now.train.seed},
      {"number of training samples", data_then.train_rows == data_now.train_rows, true},
      {"set of training samples (as many as these, with other content)",
       data_then.fingerprint == data_now.fingerprint || data_then.fingerprint == 0 ||
           data_now.fingerprint == 0,
       true},
      {"order of labels, that of earlier programs", data_then.label_seed == data_now.label_seed},
  };
  for (const Setting& setting : settings)
    if (!setting.same && !(setting.of_samples && job.other_samples))
      throw UsageError(checkpoint.folder().string() + ": this checkpoint was made with another " +
                       setting.name + "; continue it with its own, or begin a new run");
}

}  // namespace modelet::agent
