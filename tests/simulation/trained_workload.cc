#include "tests/simulation/trained_workload.h"

#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "node_agent/agent/job/rank_of_run.h"
#include "node_agent/train/trainer.h"
#include "shard/data/store/dataset.h"
#include "shard/synth/synth.h"
#include "tests/comm/groups.h"
#include "tests/scheduler/core/submission.h"
#include "tests/simulation/trained_job.h"

namespace modelet::simulation {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kRows = 150, kBatch = 16;
constexpr uint64_t kNoInterval = 8;  // runs that ask for it make snapshots when their budget allows it

comm::ContentId address_of(const std::string& bytes) {
  return comm::Manifest::of(std::as_bytes(std::span(bytes))).id();
}

bool is_modelet(const std::string& file) { return file.ends_with(".safetensors"); }
bool is_of_best(const std::string& file) { return file.starts_with(agent::kBestPrefix); }

// What an index says that is the same each time: everything except how long the training took.
nlohmann::json without_times(const std::string& index) {
  nlohmann::json json = nlohmann::json::parse(index);
  json.at("extra").erase("train_seconds");
  return json;
}

// A group that is told to stop at the end of an epoch leaves the evaluation to the next one.
bool leaves_evaluation(const nlohmann::json& index) { return index.at("extra").contains("epoch_loss"); }

// Ranks that lie elsewhere before `from` can have learned the same with other sums of losses, so the index
// belongs to the key as the modelets do.
std::string key_of(const agent::TrainJob& job, const std::optional<comm::Snapshot>& from,
                   const Bytes& bytes) {
  std::string key = to_toml(job.experiment) + fmt::format("\n{} ranks:", job.size);
  for (const uint32_t rank : job.owner) key += fmt::format(" {}", rank);
  if (!from) return key;
  key += fmt::format("\nfrom step {}", from->step);
  std::vector<std::string> files;
  for (const comm::SnapshotFile& file : from->files) {
    if (is_modelet(file.name)) files.push_back(file.name + " " + to_text(file.content));
    if (file.name == shard::kIndexName) files.push_back(without_times(bytes.at(file.content)).dump());
  }
  std::ranges::sort(files);
  for (const std::string& file : files) key += "\n" + file;
  return key;
}

void copy_files(const comm::Snapshot& snapshot, std::span<const std::string> names, const Bytes& bytes,
                const fs::path& folder) {
  fs::create_directories(folder);
  for (const std::string& name : names) {
    const auto file = std::ranges::find(snapshot.files, name, &comm::SnapshotFile::name);
    if (file == snapshot.files.end()) throw Error("the snapshot has no file " + name);
    std::ofstream out(folder / name, std::ios::binary | std::ios::trunc);
    if (!(out << bytes.at(file->content)).flush())
      throw Error((folder / name).string() + ": cannot be written");
  }
}

}  // namespace

// ---- what all histories share

TrainedRuns::TrainedRuns() {
  const fs::path memory = "/dev/shm";  // thousands of small files come and go
  std::string name =
      ((fs::exists(memory) ? memory : fs::temp_directory_path()) / "simulate_training-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw Error("no temporary folder");
  folder_ = name;
  fs::current_path(folder_);
  shard::write_synth({.rows_train = kRows,
                      .rows_test = 10,
                      .features = 100,
                      .labels = 60,
                      .features_per_row = 8,
                      .labels_per_row = 1.5,
                      .noise = 0.1},
                     folder_, false);
  shape_ = shard::describe_shape(shard::Dataset::open(folder_ / "train.mlt"),
                                 shard::Dataset::open(folder_ / "test.mlt"));
}

TrainedRuns::~TrainedRuns() {
  std::error_code none;
  fs::remove_all(folder_, none);
}

Experiment TrainedRuns::experiment(uint64_t kind) const {
  Experiment experiment;
  const fs::path data = "/proc/self/cwd";  // a name that is the same each time
  experiment.data.train = data / "train.mlt";
  experiment.data.test = data / "test.mlt";
  experiment.model.hidden = {32};
  experiment.modelets = {.hidden_columns = 16, .output_modelets = 4};
  experiment.sampling.uniform = 20;
  experiment.sampling.tables = 8;
  experiment.sampling.bits = 4;
  experiment.sampling.rehash_every = 3;
  experiment.train.epochs = 1;
  experiment.train.batch = kBatch;
  experiment.train.learning_rate = 0.02f;
  experiment.train.log_every = 3;
  experiment.train.checkpoint_every = 1000;
  experiment.exchange.codec = CodecKind::kNone;
  experiment.exchange.micro_batches = 1;  // what is measured differs each time
  switch (kind % kKinds) {
    case 1:
      experiment.sampling.mode = SamplingMode::kLsh;
      break;
    case 2:
      experiment.exchange.codec = CodecKind::kInt8;
      experiment.exchange.gradient_codec = CodecKind::kInt4;
      break;
    case 3:
      experiment.model.hidden = {32, 16};
      experiment.optimizer.clip = 0.1f;
      experiment.exchange.micro_batches = 3;
      break;
    case 4:
      experiment.model.precision = Precision::kBf16;
      experiment.model.loss = Loss::kSigmoid;
      experiment.train.hidden_dropout = 0.2f;
      break;
    case 5:  // evaluations between steps, after which the best weights are kept
      experiment.data.validation = 0.3f;
      experiment.train.epochs = 2;
      break;
    case 6:
      experiment.cluster.replicas = 2;
      experiment.exchange.local_steps = 2;
      experiment.exchange.codec = CodecKind::kInt8;
      experiment.train.epochs = 2;
      break;
    case 7:  // the same, and classifiers are fitted for the evaluations
      experiment.model.loss = Loss::kSigmoid;
      experiment.model.centroids = true;
      experiment.model.classifiers = 1.5f;
      experiment.cluster.replicas = 2;
      experiment.exchange.local_steps = 3;
      experiment.train.epochs = 2;
      break;
    default:
      break;
  }
  return experiment;
}

const TrainedRuns::Undisturbed& TrainedRuns::undisturbed(const agent::TrainJob& job,
                                                         const std::optional<comm::Snapshot>& from,
                                                         const Bytes& bytes) {
  const auto [known, is_new] = undisturbed_.insert({key_of(job, from, bytes), {}});
  Undisturbed& seen = known->second;
  if (!is_new) return seen;
  const fs::path folder = folder_ / "undisturbed";
  std::vector<std::unique_ptr<agent::Trainer>> trainers;
  for (int rank = 0; rank < job.size; ++rank) {
    agent::TrainJob of_rank = job;
    of_rank.rank = rank;
    of_rank.threads = 1;
    of_rank.out = folder / std::to_string(rank);
    of_rank.private_folder = of_rank.snapshots.enabled = true;
    if (job.replicas() == 1) of_rank.snapshots.every_steps = 1;  // replicas synchronise for snapshots
    if (from)
      agent::bring_snapshot(*from, of_rank, [&](std::span<const std::string> names, const fs::path& into) {
        copy_files(*from, names, bytes, into);
      });
    trainers.push_back(std::make_unique<agent::Trainer>(std::move(of_rank)));
    trainers.back()->prepare();
  }
  auto groups = comm::make_inproc_groups(job.size, {.run = 1});
  std::mutex mutex;
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    trainers[static_cast<size_t>(group.rank())]->run(
        group,
        [&](const nlohmann::json& event) {
          if (!event.contains("loss")) return;
          const std::lock_guard lock(mutex);
          seen.losses[{event.at("event"), event.at("step")}] = event.at("loss");
        },
        [&](const agent::WrittenSnapshot& written) {
          for (const std::string& name : written.files) {
            if (!is_modelet(name) && name != shard::kIndexName) continue;
            const std::string bytes_of_file = read_text_file(written.folder / name);
            const std::lock_guard lock(mutex);
            if (is_modelet(name))
              seen.snapshots[written.step][name] = address_of(bytes_of_file);
            else
              seen.indices[written.step] = without_times(bytes_of_file);
          }
        });
  });
  trainers.clear();
  fs::remove_all(folder);
  return seen;
}

// ---- one history

TrainedWorkload::TrainedWorkload(TrainedRuns& runs, World& world)
    : runs_(runs), world_(world), folder_(runs.folder() / "history") {}

TrainedWorkload::~TrainedWorkload() {
  std::error_code none;
  fs::remove_all(folder_, none);
}

msg::SubmitT TrainedWorkload::submission(const std::string& name, RunSpec& spec, uint32_t nodes,
                                         uint32_t output_modelets, uint64_t kind) {
  agent::TrainJob job;
  job.experiment = runs_.experiment(kind);
  if (job.experiment.cluster.replicas > std::max(nodes, 1U)) job.experiment.cluster.replicas = 1;
  job.experiment.modelets.output_modelets = output_modelets;
  if (job.experiment.cluster.replicas == 1 && spec.snapshot_every == kNoInterval) spec.snapshot_every = 0;
  job.experiment.cluster.snapshot_every = static_cast<uint32_t>(2 * spec.snapshot_every);
  const uint32_t replicas = job.experiment.cluster.replicas;
  msg::SubmitT submit = scheduler::test::submission(nodes / replicas * replicas, name, output_modelets);
  submit.experiment = to_toml(job.experiment);
  const DataShape& shape = runs_.shape();
  *submit.shape = {{},
                   shape.features,
                   shape.labels,
                   shape.train_rows,
                   shape.test_rows,
                   shape.features_per_row,
                   shape.labels_per_row,
                   shape.encoder,
                   shape.fingerprint,
                   shape.occurring_features};
  job.shape = shape;
  job.snapshots.every_steps = static_cast<uint32_t>(spec.snapshot_every);
  job.size = static_cast<int>(replicas);
  job.owner.resize(partition_model(job.experiment, shape).size());
  spec.steps = runs_.undisturbed(job, {}, {}).snapshots.rbegin()->first;
  return submit;
}

std::shared_ptr<Job> TrainedWorkload::make_job(JobSurroundings around, const msg::PrepareT& prepare) {
  return std::make_shared<TrainedJob>(std::move(around), prepare, *this);
}

void TrainedWorkload::prepared(const msg::PrepareT& prepare) {
  Group group{agent::job_of(prepare), {}};
  if (prepare.snapshot != nullptr) group.from = msg::snapshot_of(*prepare.snapshot);
  groups_.insert({{prepare.run, prepare.epoch}, std::move(group)});
}

const TrainedRuns::Undisturbed* TrainedWorkload::undisturbed(uint64_t run, uint32_t epoch) {
  const Group& group = groups_.at({run, epoch});
  if (group.from)
    for (const comm::SnapshotFile& file : group.from->files)
      if (!bytes_.contains(file.content)) {
        world_.violated(fmt::format("run {} goes on from files that no rank has written", run));
        return nullptr;
      }
  return &runs_.undisturbed(group.job, group.from, bytes_);
}

const Workload::Files* TrainedWorkload::undisturbed_files(uint64_t run, uint32_t epoch, uint64_t step) {
  const TrainedRuns::Undisturbed* const seen = undisturbed(run, epoch);
  if (seen == nullptr) return nullptr;
  const auto found = seen->snapshots.find(step);
  return found == seen->snapshots.end() ? nullptr : &found->second;
}

Workload::Files TrainedWorkload::files(uint64_t run, uint32_t epoch, uint64_t step) {
  Files files = written_[{run, epoch, step}];
  if (const Files* const right = undisturbed_files(run, epoch, step))
    for (const auto& file : *right)
      if (!is_of_best(file.first)) files.insert(file);
  return files;
}

comm::ContentId TrainedWorkload::wrote(uint64_t run, uint32_t epoch, uint64_t step, const std::string& name,
                                       std::string bytes) {
  const comm::ContentId content = address_of(bytes);
  bytes_.insert({content, std::move(bytes)});
  written_[{run, epoch, step}][name] = content;
  if (is_modelet(name)) world_.after(0, [this, run, epoch, step, name] { check(run, epoch, step, name); });
  if (name == shard::kIndexName)
    world_.after(0, [this, run, epoch, step, content] { check_index(run, epoch, step, bytes_.at(content)); });
  return content;
}

void TrainedWorkload::reported(uint64_t run, uint32_t epoch, const std::string& event, uint64_t step,
                               double loss) {
  world_.after(0, [=, this] {
    const TrainedRuns::Undisturbed* const seen = undisturbed(run, epoch);
    if (seen == nullptr) return;
    const auto right = seen->losses.find({event, step});
    if (right == seen->losses.end()) return;  // a group that is told to stop reports its last step as well
    if (right->second != loss)
      world_.violated(fmt::format(
          "run {}, epoch {}: the loss {} of event '{}' at step {} is not that of an undisturbed group, {}",
          run, epoch, loss, event, step, right->second));
  });
}

void TrainedWorkload::write_files(const comm::Snapshot& snapshot, std::span<const std::string> names,
                                  const fs::path& folder) const {
  copy_files(snapshot, names, bytes_, folder);
}

void TrainedWorkload::check(uint64_t run, uint32_t epoch, uint64_t step, const std::string& name) {
  const Files* const right = undisturbed_files(run, epoch, step);
  const bool is_replicated = groups_.at({run, epoch}).job.replicas() > 1;
  if (right == nullptr) {
    if (!is_replicated) world_.violated(fmt::format("run {} has a step {}", run, step));
    return;
  }
  const auto file = right->find(name);
  if (file == right->end()) {
    if (!is_of_best(name)) world_.violated(fmt::format("run {}: {} is no file of the run", run, name));
    return;
  }
  if (file->second != written_.at({run, epoch, step}).at(name))
    world_.violated(fmt::format("run {}, epoch {}: {} of step {} is not that of an undisturbed group", run,
                                epoch, name, step));
}

// Where check() knows of no such step, there is nothing to compare either.
void TrainedWorkload::check_index(uint64_t run, uint32_t epoch, uint64_t step, const std::string& index) {
  const TrainedRuns::Undisturbed* const seen = undisturbed(run, epoch);
  if (seen == nullptr) return;
  const auto right = seen->indices.find(step);
  const nlohmann::json written = without_times(index);
  if (right == seen->indices.end() || leaves_evaluation(written) != leaves_evaluation(right->second)) return;
  if (written != right->second)
    world_.violated(
        fmt::format("run {}, epoch {}: the index of step {} is not that of an undisturbed group: {}", run,
                    epoch, step, nlohmann::json::diff(right->second, written).dump()));
}

}  // namespace modelet::simulation
