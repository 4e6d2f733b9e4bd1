#include "scheduler/core/submission.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/experiment/towers.h"
#include "comm/content/content.h"
#include "comm/control/shape_tables.h"
#include "comm/control/snapshot_tables.h"
#include "scheduler/core/values/snapshots.h"
#include "scheduler/core/values/text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;

constexpr uint64_t kMostLabels = uint64_t{1} << 32;
constexpr uint32_t kMostTasks = 1024;
constexpr size_t kLongestSnapshot =
    comm::control::kMaxControlBytes / 4 * 3;              // leaves room for the rest of Prepare
constexpr size_t kLongestExperiment = size_t{256} << 10;  // bytes; one with every key has 5 KB

void check_shape(const DataShape& shape) {
  const auto in_range = [](uint64_t value) { return value >= 1 && value <= kMostLabels; };
  if (!in_range(shape.features) || !in_range(shape.labels) || !in_range(shape.train_rows) ||
      shape.test_rows > kMostLabels || shape.occurring_features > shape.features ||
      !is_measure(shape.features_per_row) || !is_measure(shape.labels_per_row) ||
      shape.features_per_row > static_cast<double>(shape.features) ||
      shape.labels_per_row > static_cast<double>(shape.labels))
    throw UsageError("the shape of the data is missing or absurd");
}

uint64_t modelets_of(const Experiment& experiment, uint64_t labels) {
  const uint64_t columns = experiment.modelets.hidden_columns;
  uint64_t modelets = std::min<uint64_t>(experiment.modelets.output_modelets, labels);
  for (const uint64_t width : experiment.model.hidden) modelets += (width + columns - 1) / columns;
  return modelets;
}

void check_modelets(const Experiment& experiment, uint64_t labels) {
  const uint64_t modelets = modelets_of(experiment, labels);
  if (modelets > kMostModelets)
    throw UsageError(
        fmt::format("the partition has {} modelets, more than the limit of {}: make modelets.hidden_columns "
                    "larger or modelets.output_modelets smaller",
                    modelets, kMostModelets));
}

// The data of the run in the store of this scheduler, for agents that do not have it. Both addresses are
// given, or none.
void check_data(const msg::SubmitT& message, uint16_t data_port, bool has_private = false) {
  if (message.train_data.empty() && message.test_data.empty()) return;
  if (!has_private) comm::parse_content_id(message.train_data);
  if (message.division.empty()) comm::parse_content_id(message.test_data);  // towers are tested by who submits them
  if (data_port == 0) throw UsageError("this scheduler keeps no data: start it with --store");
}

// Each owner has its own training data, and only the owner has it.
void check_private(const msg::SubmitT& message, const Experiment& experiment) {
  const Experiment::Cluster& cluster = experiment.cluster;
  if (cluster.replicas < 2)
    throw UsageError(fmt::format("data.train is {}: cluster.replicas must be the number of owners, at least 2",
                                 experiment.data.train));
  if (cluster.epoch_steps == 0)
    throw UsageError(
        fmt::format("data.train is {}: nobody knows how many samples there are, so cluster.epoch_steps must say how "
                    "many steps make an epoch",
                    experiment.data.train));
  if (cluster.min_nodes > cluster.replicas)
    throw UsageError(fmt::format("cluster.min_nodes is {}, and a run of {} owners never has more nodes than owners",
                                 cluster.min_nodes, cluster.replicas));
  if (cluster.least_owners == 1 || cluster.least_owners > cluster.replicas)
    throw UsageError(fmt::format("cluster.least_owners is {}: a round needs at least 2 owners, and there are {} "
                                 "(cluster.replicas)",
                                 cluster.least_owners, cluster.replicas));
  if (message.nodes != 0 && message.nodes != cluster.replicas)
    throw UsageError(fmt::format("data.train is {}: each of the {} owners (cluster.replicas) is one node, so {} are of "
                                 "no use",
                                 experiment.data.train, cluster.replicas, nodes_text(message.nodes)));
  if (!message.train_data.empty()) throw UsageError("private data must stay with its owners: submit with this release");
}

// A snapshot to continue from, whose files are in the store of this scheduler. Other holders are of no use to agents.
comm::Snapshot resume_snapshot(const msg::SnapshotT& table, uint16_t data_port, uint64_t modelets) {
  if (data_port == 0) throw UsageError("this scheduler keeps no files: start it with --store");
  comm::Snapshot snapshot = msg::snapshot_of(table);
  if (snapshot.files.size() > most_snapshot_files(modelets))
    throw UsageError(fmt::format("the snapshot has {} files, and one of this experiment has at most {}",
                                 snapshot.files.size(), most_snapshot_files(modelets)));
  for (comm::SnapshotFile& file : snapshot.files) file.holders = {""};
  if (const size_t bytes = msg::bytes_in_message(snapshot); bytes > kLongestSnapshot)
    throw UsageError(fmt::format("the list of the snapshot's files has {} bytes, more than the limit of {}",
                                 bytes, kLongestSnapshot));
  return snapshot;
}

// A run of towers: each task has some of the labels.
Submission checked_tasks(const msg::SubmitT& message, uint16_t data_port, Submission submission) {
  const Experiment& experiment = submission.experiment;
  const uint32_t tasks = tower_tasks(experiment.model);
  if (tasks > kMostTasks)
    throw UsageError(fmt::format("model.towers x model.divisions is {}, and a pool takes runs of at most {}",
                                 tasks, kMostTasks));
  if (message.tasks.size() != tasks || message.division.empty())
    throw UsageError(
        fmt::format("the labels are not divided into the {} towers: submit with this release", tasks));
  if (message.resume_files != nullptr || (!message.resume_tasks.empty() && message.resume_tasks.size() != tasks))
    throw UsageError(fmt::format("--resume: not a checkpoint of {} towers", tasks));
  comm::parse_content_id(message.division);
  if (data_port == 0)
    throw UsageError(
        "towers need a scheduler that keeps files: start modelet-scheduler with --state or --store");
  check_data(message, data_port);
  for (const msg::TaskLabels& labels : message.tasks) {
    const DataShape shape = tower_shape(submission.shape, labels.labels(), labels.entries());
    check_shape(shape);
    if (shape.labels > submission.shape.labels) throw UsageError("a tower has more labels than there are");
    check_modelets(tower_experiment(experiment), shape.labels);
    if (message.resume_tasks.empty()) continue;
    submission.resume.push_back(resume_snapshot(*message.resume_tasks[submission.resume.size()], data_port,
                                                      modelets_of(tower_experiment(experiment), shape.labels)));
  }
  return submission;
}

}  // namespace

Submission checked_submission(const msg::SubmitT& message, uint16_t data_port) {
  if (!is_name(message.name)) throw UsageError(fmt::format("a run's name is {}", kNameRule));
  if (message.shape == nullptr) throw UsageError("the shape of the data is missing");
  if (message.experiment.size() > kLongestExperiment)
    throw UsageError(fmt::format("the experiment has {} bytes, more than the limit of {}",
                                 message.experiment.size(), kLongestExperiment));
  Submission submission{.experiment = parse_experiment(message.experiment, "submitted experiment"),
                        .shape = msg::shape_of(*message.shape)};
  check_shape(submission.shape);
  if (submission.shape.all_labels != 0)
    throw UsageError("the shape is that of a tower, and only the scheduler makes tasks");
  if (tower_tasks(submission.experiment.model) > 1)
    return checked_tasks(message, data_port, std::move(submission));
  if (!message.division.empty() || !message.tasks.empty() || !message.resume_tasks.empty())
    throw UsageError("the labels are divided, and the experiment has no towers");
  check_modelets(submission.experiment, submission.shape.labels);
  const uint32_t replicas = submission.experiment.cluster.replicas;
  if (message.nodes % replicas != 0)
    throw UsageError(fmt::format("cluster.replicas is {}, and {} cannot form that many equal groups",
                                 replicas, nodes_text(message.nodes)));
  const bool has_private = is_private(submission.experiment);
  if (has_private) check_private(message, submission.experiment);
  check_data(message, data_port, has_private);
  if (message.resume_files == nullptr) return submission;
  if (message.resume_files->files.empty()) throw UsageError("the snapshot has no files");
  submission.resume.push_back(resume_snapshot(*message.resume_files, data_port,
                                              modelets_of(submission.experiment, submission.shape.labels)));
  return submission;
}

}  // namespace modelet::scheduler
