#include "scheduler/cli/model/run_samples.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text/without_quotes.h"
#include "node_agent/train/job/same_run.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/client/report.h"
#include "shard/data/batch/split.h"
#include "shard/inference/calibration.h"

namespace modelet::cli {
namespace {

// Whether a file that a run's experiment names is here. It may be on another machine or in a folder of another
// user, and a run without data names /dev/null.
bool is_here(const std::string& file) {
  std::error_code failure;
  return std::filesystem::is_regular_file(file, failure);
}

// Loads data that only a model names. The model may come from a stranger, who may have named any file: what is in
// it is quoted nowhere.
template <class Load>
shard::Dataset load_without_quotes(const Load& load) {
  try {
    return load();
  } catch (const MisfitError& error) {
    throw UsageError(without_quotes(error));
  } catch (const FormatError& error) {
    throw FormatError(without_quotes(error));
  }
}

std::optional<shard::Dataset> training_data(const shard::Model& model) {
  Reporter reporter(false);
  std::optional<shard::Dataset> data =
      shard::training_data_of(model, report_preparing(reporter, model.experiment().data.train));
  reporter.clear_progress();
  return data;
}

struct HeldOut {
  shard::Dataset data;
  std::vector<uint32_t> rows;
  std::string name;
};

HeldOut held_out(const shard::Model& model, const std::string& labelled) {
  if (!labelled.empty()) {
    HeldOut found{load_samples(model, labelled), {}, labelled};
    found.rows = shard::all_rows(found.data.rows());
    return found;
  }
  const Experiment::Data& of_run = model.experiment().data;
  // With other samples, or in another order, the held-out rows would be different ones.
  std::optional<shard::Dataset> train;
  if (of_run.validation > 0) train = training_data(model);
  if (train) {
    HeldOut found{std::move(*train), {}, "the samples of " + of_run.train + " that training held out"};
    found.rows = shard::split_rows(found.data.rows(), of_run.validation, model.experiment().train.seed).validation;
    return found;
  }
  HeldOut found{
      test_data(model,
                "probabilities have to be calibrated on samples with labels: give --calibrate FILE with "
                "such samples that were not trained on"),
      {},
      of_run.test};
  found.rows = shard::all_rows(found.data.rows());
  return found;
}

}  // namespace

std::unique_ptr<const shard::NearestSamples> nearest_samples(const shard::Model& model) {
  std::optional<shard::Dataset> data = training_data(model);
  if (!data)
    throw UsageError(fmt::format("--examples: {}: there is no such file here, or it has other samples than those that the model "
                                 "was trained on",
                                 model.experiment().data.train));
  return std::make_unique<const shard::NearestSamples>(std::move(*data));
}

shard::Dataset load_samples(const shard::Model& model, const std::string& path) {
  Reporter reporter(false);
  shard::Dataset data = model.load_data(path, report_preparing(reporter, path));
  reporter.clear_progress();
  note_unknown_labels(data.unknown_labels(), data.rows(), path, reporter);
  return data;
}

shard::Dataset test_data(const shard::Model& model, const std::string& advice) {
  const std::string& file = model.experiment().data.test;
  const auto extra = nlohmann::json::parse(model.index().extra);
  const auto known = extra.find(agent::kTestFingerprint);
  if (!is_here(file))
    throw UsageError(
        fmt::format("{}: there is no such file; it was the test data of the run: {}", file, advice));
  if (known == extra.end())
    throw UsageError(fmt::format(
        "{}: this model was made by an earlier release, which did not record what its test data contained: "
        "{}",
        file, advice));
  shard::Dataset data = load_without_quotes([&] { return load_samples(model, file); });
  if (*known != agent::fingerprint_text(data))
    throw UsageError(
        fmt::format("{}: these are not the samples with which the run was tested: {}", file, advice));
  return data;
}

void calibrate(shard::Model& model, const std::string& labelled, shard::SearchMode mode, const Note& note) {
  constexpr size_t kMostRows = 2000, kFewestRows = 50;
  const std::filesystem::path file = model.folder() / shard::kCalibrationFile;
  const uint64_t key = model.fingerprint();
  if (labelled.empty())
    if (const auto kept = shard::read_calibration(file, key)) return model.set_calibration(kept);
  const HeldOut source = held_out(model, labelled);
  std::vector<uint32_t> rows;
  for (size_t i = 0, count = std::min(kMostRows, source.rows.size()); i < count; ++i)
    rows.push_back(source.rows[i * source.rows.size() / count]);
  if (rows.size() < kFewestRows || source.data.label_entries() == 0)
    throw UsageError(fmt::format(
        "{}: {} samples with {} labels that the model knows are too few to calibrate probabilities on; at "
        "least {} samples are needed: give --calibrate FILE with more",
        source.name, rows.size(), source.data.label_entries(), kFewestRows));
  std::vector<shard::Outcome> outcomes;
  model.predict(source.data, rows, std::min(model.shape().labels, uint64_t{shard::kNormalisedOver}), mode,
                [&](const shard::Batch& batch, const shard::TopK& best) {
                  shard::add_outcomes(model.experiment().model.loss, batch, best, outcomes);
                });
  shard::Calibration fitted = shard::fit_calibration(outcomes);
  fitted.rows = rows.size();
  const bool kept = shard::write_calibration(file, key, fitted);
  note(fmt::format(
      "probabilities calibrated on {} samples of {}: calibration error {:.4f}, before {:.4f}; {}",
      rows.size(), source.name, shard::calibration_error(fitted, outcomes),
      shard::calibration_error({}, outcomes),
      kept ? "kept as " + file.string() : "not kept, because " + file.string() + " cannot be written"));
  model.set_calibration(fitted);
}

void note_missing_names(const shard::Model& model, const Note& note) {
  if (!model.misses_names()) return;
  const std::string& file = model.experiment().data.labels;
  note(fmt::format("{}: {}; it has the names of the labels, and answers have {}: give --labels FILE", file,
                   is_here(file) ? "is not in the model's folder, and a model alone is not trusted to name it"
                                 : "no such file",
                   model.label_names().empty() ? "none now" : "those of the training data now"));
}

}  // namespace modelet::cli
