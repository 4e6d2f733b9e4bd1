#include "scheduler/cli/model/loaded_model.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "node_agent/folders/run_journal.h"
#include "node_agent/machine/capacity.h"
#include "node_agent/train/job/same_run.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/client/report.h"
#include "shard/data/batch/split.h"
#include "shard/data/encode/encoder.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::cli {
namespace {

constexpr size_t kBatch = 512;  // samples scored together

namespace fs = std::filesystem;

// Whether a file that a run's experiment names is here. It may be on another machine or in a folder of another
// user, and a run without data names /dev/null.
bool is_here(const std::string& file) {
  std::error_code failure;
  return fs::is_regular_file(file, failure);
}

// Whether it is in `folder`, wherever ".." and symbolic links lead.
bool is_within(const fs::path& folder, const fs::path& file) {
  std::error_code failure;
  const fs::path real = fs::canonical(file, failure), parent = fs::canonical(folder, failure);
  return !failure && std::ranges::mismatch(parent, real).in1 == parent.end() && is_here(real);
}

}  // namespace

LoadedModel::LoadedModel(const std::string& path, uint32_t threads)
    : predictor_(agent::require_memory_for_model(path), threads > 0 ? threads : agent::usable_cores()),
      sharding_(partition_model(experiment(), shape()),
                std::vector<uint32_t>(predictor_.index().modelets.size(), 0), 0, 1),
      group_(comm::make_solo_group()),
      evaluator_(predictor_.network(), sharding_, *group_) {}

shard::Dataset LoadedModel::load_data(const std::string& path) const {
  Reporter reporter(false);  // standard output is for the answer alone
  shard::Dataset data = predictor_.load_data(path, tell_preparing(reporter, path));
  reporter.clear_progress();
  note_unknown_labels(data.unknown_labels(), data.rows(), path, reporter);
  return data;
}

std::vector<std::string> LoadedModel::label_names(const std::string& file, const Note& warn) const {
  if (!file.empty()) return shard::load_label_names(file, shape().labels);
  const fs::path& checkpoint = predictor_.folder();
  const fs::path run = shard::run_of(checkpoint), copy = run / agent::kLabelNames;
  const std::string& of_run = experiment().data.labels;
  std::vector<std::string> names = shard::label_names(predictor_.encoder(), checkpoint.string());
  if (of_run.empty()) return names;
  if (!run.empty() && is_within(run, copy)) return shard::load_label_names(copy, shape().labels);
  if (is_within(checkpoint, of_run)) return shard::load_label_names(of_run, shape().labels);
  warn(fmt::format("{}: {}; it has the names of the labels, and answers have {}: give --labels FILE", of_run,
                   is_here(of_run)
                       ? "is not in the model's folder, and a model alone is not trusted to name it"
                       : "no such file",
                   names.empty() ? "none now" : "those of the training data now"));
  return names;
}

shard::Dataset LoadedModel::test_data(const std::string& advice) const {
  const std::string& file = experiment().data.test;
  const auto extra = nlohmann::json::parse(predictor_.index().extra);
  const auto known = extra.find(agent::kTestFingerprint);
  if (!is_here(file))
    throw UsageError(
        fmt::format("{}: there is no such file; it was the test data of the run: {}", file, advice));
  if (known == extra.end())
    throw UsageError(fmt::format(
        "{}: this model was made by an earlier release, which did not record what its test data contained: "
        "{}",
        file, advice));
  shard::Dataset data = load_data(file);
  if (*known != agent::fingerprint_text(data))
    throw UsageError(
        fmt::format("{}: these are not the samples with which the run was tested: {}", file, advice));
  return data;
}

void LoadedModel::make_sparse(const shard::Dataset& queries) {
  predictor_.prepare_sparse(queries);
  sparse_ = true;
}

void LoadedModel::score(const shard::Batch& batch, size_t k, shard::TopK& best) {
  if (sparse_)
    predictor_.predict_sparse(batch, k, best);
  else
    evaluator_.predict(batch, k, {}, best);
}

void LoadedModel::predict(const shard::Dataset& data, std::span<const uint32_t> rows, size_t k,
                          const OnBatch& on_batch) {
  shard::Batch batch;
  shard::TopK best;
  for (size_t first = 0; first < rows.size(); first += kBatch) {
    batch.assign(data, rows.subspan(first, std::min(kBatch, rows.size() - first)), false);
    score(batch, k, best);
    on_batch(batch, best);
  }
}

void LoadedModel::predict(shard::SampleReader& stream, uint64_t limit, size_t k, const OnBatch& on_batch) {
  shard::Batch batch;
  shard::TopK best;
  std::exception_ptr failure;
  const auto fill = [&](uint64_t most) {
    batch.clear();
    try {
      shard::Sample sample;
      while (batch.size() < most && (batch.size() == 0 || stream.ready()) && stream.next(sample))
        batch.add(sample);
    } catch (const Error&) {
      failure = std::current_exception();
    }
    return batch.size() > 0;
  };
  const auto most = [&](uint64_t done) {
    return limit == 0 ? uint64_t{kBatch} : std::min(uint64_t{kBatch}, limit - done);
  };
  for (uint64_t done = 0; !failure && fill(most(done)); done += batch.size()) {
    score(batch, k, best);
    on_batch(batch, best);
  }
  if (failure) std::rethrow_exception(failure);
}

LoadedModel::HeldOut LoadedModel::held_out(const std::string& labelled) const {
  if (!labelled.empty()) {
    HeldOut found{load_data(labelled), {}, labelled};
    found.rows = shard::all_rows(found.data.rows());
    return found;
  }
  const Experiment::Data& of_run = experiment().data;
  if (of_run.validation > 0 && is_here(of_run.train)) {
    Reporter reporter(false);
    HeldOut found{shard::load_training_data(of_run.train, of_run.normalize, encoding_of(experiment()), {},
                                            tell_preparing(reporter, of_run.train)),
                  {},
                  "the samples of " + of_run.train + " that training held out"};
    reporter.clear_progress();
    // With other samples, or in another order, the held-out rows would be different ones.
    if (found.data.fingerprint() == shape().fingerprint) {
      found.rows =
          shard::split_rows(found.data.rows(), of_run.validation, experiment().train.seed).validation;
      return found;
    }
  }
  HeldOut found{
      test_data("probabilities have to be calibrated on samples with labels: give --calibrate FILE with "
                "such samples that were not trained on"),
      {},
      of_run.test};
  found.rows = shard::all_rows(found.data.rows());
  return found;
}

shard::Calibration LoadedModel::calibrate(const std::string& labelled, const Note& note) {
  constexpr size_t kMostRows = 2000, kFewestRows = 50;
  const std::filesystem::path file = predictor_.folder() / shard::kCalibrationFile;
  const uint64_t key = predictor_.fingerprint();
  if (labelled.empty())
    if (const auto kept = shard::read_calibration(file, key)) return *kept;
  const HeldOut source = held_out(labelled);
  std::vector<uint32_t> rows;
  for (size_t i = 0, count = std::min(kMostRows, source.rows.size()); i < count; ++i)
    rows.push_back(source.rows[i * source.rows.size() / count]);
  if (rows.size() < kFewestRows || source.data.label_entries() == 0)
    throw UsageError(fmt::format(
        "{}: {} samples with {} labels that the model knows are too few to calibrate probabilities on; at "
        "least {} samples are needed: give --calibrate FILE with more",
        source.name, rows.size(), source.data.label_entries(), kFewestRows));
  std::vector<shard::Outcome> outcomes;
  predict(source.data, rows, std::min(shape().labels, uint64_t{shard::kNormalisedOver}),
          [&](const shard::Batch& batch, const shard::TopK& best) {
            shard::add_outcomes(experiment().model.loss, batch, best, outcomes);
          });
  shard::Calibration fitted = shard::fit_calibration(outcomes);
  fitted.rows = rows.size();
  const bool kept = shard::write_calibration(file, key, fitted);
  note(fmt::format(
      "probabilities calibrated on {} samples of {}: calibration error {:.4f}, before {:.4f}; {}",
      rows.size(), source.name, shard::calibration_error(fitted, outcomes),
      shard::calibration_error({}, outcomes),
      kept ? "kept as " + file.string() : "not kept, because " + file.string() + " cannot be written"));
  return fitted;
}

}  // namespace modelet::cli
