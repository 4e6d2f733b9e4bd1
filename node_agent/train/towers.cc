#include "node_agent/train/towers.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/experiment/towers.h"
#include "base/system/clock.h"
#include "base/system/process.h"
#include "base/text/strict_json.h"
#include "node_agent/train/data/sample_source.h"
#include "node_agent/train/evaluation/model_selection.h"
#include "node_agent/train/job/same_run.h"
#include "node_agent/train/trainer.h"
#include "shard/data/batch/split.h"
#include "shard/data/pairs/divide_labels.h"
#include "shard/inference/metrics.h"
#include "shard/inference/model.h"
#include "shard/modelet/checkpoint.h"
#include "shard/modelet/checkpoint/folders.h"
#include "shard/modelet/checkpoint_writer.h"

namespace modelet::agent {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char *kTowerCheckpoints = "checkpoints", *kTowerFinished = "finished.json";
constexpr size_t kMostFinishedBytes = 1 << 20;
constexpr int kFinishedDepth = 8;
// Members of the checkpoint's `extra`, and of a finished task's record.
constexpr const char *kTowerSeconds = "train_seconds", *kTowerEpochs = "epochs", *kTowerEvent = "event";

const OnPreparing kNoPreparing = [](const std::string&) { return shard::PrepareProgress(); };

shard::Dataset samples_of_all_labels(const TrainJob& job) {
  return shared_samples(job)->train({{0, job.shape.labels}}, kNoPreparing);
}

std::vector<uint32_t> rows_of_towers(const TrainJob& job, const shard::Dataset& data) {
  return shard::split_rows(data.rows(), job.experiment.data.validation, job.experiment.train.seed).train;
}

shard::LabelDivision read_division(const fs::path& file, const TrainJob& job) {
  const Experiment::Model& model = job.experiment.model;
  try {
    return shard::LabelDivision::read(file, model.towers, model.divisions, job.shape.labels);
  } catch (const FormatError& error) {
    throw UsageError(
        fmt::format("{}; continue the run with its own model.towers, model.divisions and data", error.what()));
  }
}

// The best labels of all samples that were asked about, as towers find them one after the other. Where each label is in
// one tower, these are merged as they come, so only one is in memory; else all towers are.
class MergedAnswers {
 public:
  MergedAnswers(const fs::path& model, ThreadPool& pool, std::function<void(double)> progress)
      : checkpoint_(shard::Checkpoint::open(model)), pool_(pool), progress_(std::move(progress)) {}

  void find(const shard::Dataset& data, std::span<const uint32_t> rows, size_t k,
            const shard::Model::OnBatch& use) {
    constexpr size_t kBatch = shard::Model::kBatch;
    const shard::LabelDivision division = checkpoint_.read_division();
    if (!division.disjoint()) return find_at_once(data, rows, k, use);
    std::vector<shard::TopK> best((rows.size() + kBatch - 1) / kBatch);
    shard::Batch batch;
    const auto batch_of = [&](size_t b) {
      return rows.subspan(b * kBatch, std::min(kBatch, rows.size() - b * kBatch));
    };
    for (uint32_t task = 0; task < division.tasks(); ++task) {
      shard::Tower tower(checkpoint_.open_tower(task), division.spread(task), pool_);
      shard::TopK of_tower;
      for (size_t b = 0; b < best.size(); ++b) {
        batch.assign(data, batch_of(b), false);
        if (task == 0) best[b].reset(batch.size(), k);
        tower.rank(batch, k, of_tower);
        best[b].merge(of_tower);
        progress_((task + static_cast<double>(b + 1) / static_cast<double>(best.size())) / division.tasks());
      }
    }
    for (size_t b = 0; b < best.size(); ++b) {
      batch.assign(data, batch_of(b), false);
      use(batch, best[b]);
    }
  }

 private:
  void find_at_once(const shard::Dataset& data, std::span<const uint32_t> rows, size_t k,
                    const shard::Model::OnBatch& use) {
    shard::Model model(checkpoint_.folder(), pool_.threads());
    size_t done = 0;
    model.predict(data, rows, k, shard::SearchMode::kDense,
                  [&](const shard::Batch& batch, const shard::TopK& best) {
                    use(batch, best);
                    done += batch.size();
                    progress_(static_cast<double>(done) / static_cast<double>(rows.size()));
                  });
  }

  const shard::Checkpoint checkpoint_;
  ThreadPool& pool_;
  const std::function<void(double)> progress_;  // of the part that is done; may throw
};

}  // namespace

TowersStart start_of_towers(const TrainJob& job, ThreadPool& pool) {
  const Experiment::Model& model = job.experiment.model;
  std::vector<fs::path> checkpoints(tower_tasks(model));
  if (job.resume.empty()) {
    const shard::Dataset data = samples_of_all_labels(job);
    return {shard::divide_labels(job.experiment, data, rows_of_towers(job, data), pool), std::move(checkpoints)};
  }
  if (job.resume.filename() == shard::kTowersFolder) {  // of a run that was interrupted
    for (uint32_t task = 0; task < checkpoints.size(); ++task)
      checkpoints[task] = shard::newest_checkpoint(folder_of_task(job.resume.parent_path(), task) / kTowerCheckpoints)
                              .value_or(fs::path());
  } else {
    const shard::Checkpoint start = shard::Checkpoint::open(job.resume);
    if (start.index().towers.size() != checkpoints.size())
      throw UsageError(
          fmt::format("{}: this checkpoint was made with another number of towers; continue it with its own "
                      "model.towers and model.divisions, or begin a new run",
                      job.resume.string()));
    for (uint32_t task = 0; task < checkpoints.size(); ++task) checkpoints[task] = start.open_tower(task).folder();
  }
  return {read_division(job.resume / shard::LabelDivision::kFile, job), std::move(checkpoints)};
}

fs::path folder_of_task(const fs::path& run, uint32_t task) {
  return run / shard::kTowersFolder / fmt::format("{:03}", task);
}

void set_finished(const fs::path& folder_of_task, uint32_t epochs, const json& event) {
  AtomicFile file(folder_of_task / kTowerFinished);
  file.write(json{{kTowerEpochs, epochs}, {kTowerEvent, event}}.dump());
  file.commit();
}

TrainJob tower_job(const TrainJob& whole, const shard::LabelDivision::Part& part) {
  TrainJob job = whole;
  job.experiment = tower_experiment(whole.experiment);
  job.shape = tower_shape(whole.shape, part.labels, part.entries);
  job.owner.assign(partition_model(job.experiment, job.shape).size(), 0);
  return job;
}

TowerRun::TowerRun(const TrainJob& job, ThreadPool& pool)
    : job_(job), pool_(pool), lock_(shard::take_run_folder(job.out, job.resume)), division_(find_division()) {
  const shard::Dataset data = samples_of_all_labels(job);
  parts_ = division_.parts(shard::count_labels(data));
}

fs::path TowerRun::start_of(const fs::path& path) {
  const fs::path run = shard::run_of(path), left = run / shard::kTowersFolder;
  return !run.empty() && fs::exists(left / shard::LabelDivision::kFile) ? left : shard::find_checkpoint(path);
}

fs::path TowerRun::towers() const { return job_.out / shard::kTowersFolder; }

fs::path TowerRun::folder(uint32_t task) const { return folder_of_task(job_.out, task); }

shard::LabelDivision TowerRun::find_division() {
  const fs::path file = towers() / shard::LabelDivision::kFile;
  if (fs::exists(file)) {
    if (job_.resume != towers())
      throw UsageError(
          fmt::format("{}: holds a run already, whose towers are not all trained; choose another --out, or "
                      "continue that run with --resume {}",
                      job_.out.string(), job_.out.string()));
    return read_division(file, job_);
  }
  const TowersStart start = start_of_towers(job_, pool_);
  for (uint32_t task = 0; task < start.checkpoints.size(); ++task) {
    const fs::path& from = start.checkpoints[task];
    if (from.empty()) continue;
    const fs::path target =
        shard::checkpoint_of_step(folder(task) / kTowerCheckpoints, shard::Checkpoint::open(from).index().step);
    fs::create_directories(target);
    for (const fs::directory_entry& entry : fs::directory_iterator(from))
      if (entry.is_regular_file()) link_or_copy(entry.path(), target / entry.path().filename());
  }
  fs::create_directories(towers());
  start.division.write(file);  // last: then all are there
  return start.division;
}

TrainJob TowerRun::job(uint32_t task) const {
  TrainJob job = tower_job(job_, parts_[task]);
  job.run = fmt::format("{}, tower {} of {}", job_.run, task + 1, division_.tasks());
  job.out = folder(task);
  job.resume = shard::newest_checkpoint(folder(task) / kTowerCheckpoints).value_or(fs::path());
  return job;
}

std::optional<json> TowerRun::finished(uint32_t task) const {
  const fs::path file = folder(task) / kTowerFinished;
  if (!fs::exists(file)) return std::nullopt;
  const json record =
      parse_strict_json(read_text_file(file, kMostFinishedBytes), file.string(), kFinishedDepth);
  if (unsigned_at(record, kTowerEpochs, file.string()) != job_.experiment.train.epochs) return std::nullopt;
  return member_at(record, kTowerEvent, file.string());
}

void TowerRun::set_finished(uint32_t task, const json& event) const {
  agent::set_finished(folder(task), job_.experiment.train.epochs, event);
}

fs::path TowerRun::write_model() const {
  std::vector<shard::Checkpoint> of_tasks;
  for (uint32_t task = 0; task < division_.tasks(); ++task)
    of_tasks.push_back(shard::Checkpoint::open(shard::find_model(folder(task))));
  shard::CheckpointIndex index;
  index.modelet_version = of_tasks.front().index().modelet_version;
  index.experiment = job_.experiment;
  index.shape = of_tasks.front().index().shape;  // what it says of the samples, and of the features with rows
  index.shape.all_labels = 0;
  index.shape.labels = job_.shape.labels;
  index.shape.labels_per_row = job_.shape.labels_per_row;
  index.shape.test_rows = job_.shape.test_rows;
  index.encoder = of_tasks.front().index().encoder;
  index.removed_labels = of_tasks.front().index().removed_labels;
  for (const shard::Checkpoint& tower : of_tasks) index.step = std::max(index.step, tower.index().step);
  index.best_step = index.step;

  const shard::CheckpointWriter writer(job_.out / kTowerCheckpoints, index.step);
  for (uint32_t task = 0; task < division_.tasks(); ++task)
    index.towers.push_back(writer.add_tower(of_tasks[task].folder(), task));
  index.division = writer.write_division(division_);
  if (index.encoder) writer.add(of_tasks.front().folder() / shard::kEncoderName, shard::kEncoderName);
  return writer.commit(std::move(index), job_.experiment.train.keep_checkpoints);
}

void TowerRun::finish(const EventSink& events, const std::function<bool()>& stop) {
  json event = {{"event", "finished"}, {"towers", division_.tasks()}};
  double seconds = 0, samples = 0;
  uint64_t steps = 0;
  for (uint32_t task = 0; task < division_.tasks(); ++task) {
    const json of_task = finished(task).value();
    seconds += of_task.at(kTowerSeconds).get<double>();
    samples += of_task.at(kTowerSeconds).get<double>() * of_task.at("samples_per_second").get<double>();
    steps += of_task.at("steps").get<uint64_t>();
  }
  const fs::path model = write_model();
  events({{"event", "checkpoint"},
          {"step", shard::Checkpoint::open(model).index().step},
          {"path", model.string()}});

  const SteadyClock clock;
  const double began = clock.now();
  double reported = began;
  const auto test = [&](const char* name, const shard::Dataset& data, std::span<const uint32_t> rows,
                        std::span<const uint32_t> counts) {
    const size_t labels = job_.shape.labels;
    shard::Metrics metrics(
        kFigureRanks, shard::inverse_propensities(counts, job_.shape.train_rows, job_.experiment.metrics),
        shard::has_auc(job_.experiment.model.loss, labels) ? labels : 0);
    const auto progress = [&](double done) {
      if (stop()) throw Interrupted("stopped while the model was tested; it is complete: " + model.string());
      const double now = clock.now();
      if (now - reported < Trainer::kMostSilentSeconds) return;
      reported = now;
      events({{"event", "evaluating"},
              {"data", name},
              {"rows", static_cast<uint64_t>(done * static_cast<double>(rows.size()))},
              {"total_rows", rows.size()},
              {"eta_seconds", (now - began) / done * (1 - done)}});
    };
    MergedAnswers(model, pool_, progress)
        .find(data, rows, metrics.depth(),
              [&](const shard::Batch& batch, const shard::TopK& best) { metrics.add(batch, best); });
    json figures = json::object();
    add_figures(figures, metrics.figures());
    return figures;
  };

  const auto source = shared_samples(job_);
  const shard::Dataset data = source->train({{0, job_.shape.labels}}, kNoPreparing);
  const std::vector<uint32_t> counts = shard::count_labels(data);
  const shard::Dataset tested = source->test(data, kNoPreparing);
  const auto held_out =
      shard::split_rows(data.rows(), job_.experiment.data.validation, job_.experiment.train.seed).validation;
  event.update({{kTowerSeconds, seconds},
                {"samples_per_second", seconds > 0 ? samples / seconds : 0},
                {"steps", steps},
                {"bytes_sent_per_node_per_step", 0},
                {"checkpoint", model.string()}});
  if (!held_out.empty()) event["validation"] = test("validation", data, held_out, counts);
  if (tested.rows() > 0) event.update(test("test", tested, shard::all_rows(tested.rows()), counts));
  event["peak_rss_bytes"] = peak_memory_bytes();
  const json extra = {{kTowerSeconds, seconds}, {kTestFingerprint, fingerprint_text(tested)}};
  const uint64_t step = shard::Checkpoint::open(model).index().step;
  shard::amend_checkpoint(model, step, extra.dump(), job_.experiment.train.keep_checkpoints);
  shard::remove_tree(towers());
  events(event);
}

}  // namespace modelet::agent
