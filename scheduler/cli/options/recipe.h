// Options for experiments of which the user gives only some keys, such as `modelet train TRAIN TEST`. The
// other keys are chosen for the data (node_agent/train/recipe).
#pragma once

#include <CLI/App.hpp>
#include <filesystem>
#include <optional>
#include <string>

#include "base/experiment/experiment.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/client/report.h"

namespace modelet::cli {

// Seconds in a text such as "90s", "5m" or "1.5h". Throws UsageError for anything else.
double parse_duration(const std::string& text);

struct ChosenExperiment {
  Experiment experiment;
  std::string text;  // the text of a file that repeats it, with comments
};

struct RecipeArguments {
  std::string test, target, label_texts, time_budget;
  bool choose = false;
  std::optional<double> trial_share;  // agent::ChooseOptions

  // Adds TEST, --target, --label-texts, --choose, --time-budget and --trial-share.
  void add_to(CLI::App& verb);
  // Whether something is to be chosen. Otherwise the experiment is a file that says everything.
  bool used() const { return choose || from_data() || !label_texts.empty() || !time_budget.empty() || trial_share; }
  // Whether the keys are chosen for data, rather than for an experiment file.
  bool from_data() const { return !test.empty() || !target.empty(); }
  // Tells `reporter` what is chosen, and why, for a run on so many processes of this machine. `arguments.file` is the
  // training data if from_data(); otherwise it is a file with some of the keys. Training data
  // without samples that are held out, or with those of label_texts, is written to `folder`.
  ChosenExperiment make(const ExperimentArguments& arguments, const std::filesystem::path& folder, uint32_t nodes,
                        Reporter& reporter) const;
  // The name of the run: the name of the training data, or the name of its folder if the file is only called
  // "train".
  std::string run_name(const ExperimentArguments& arguments) const;
};

}  // namespace modelet::cli
