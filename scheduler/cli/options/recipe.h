// `modelet train TRAIN TEST`: an experiment of which only some keys are given; the others are chosen for the data
// (node_agent/train/recipe).
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "base/experiment/experiment.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/client/report.h"

namespace modelet::cli {

// Seconds of "90s", "5m", "1.5h". UsageError for anything else.
double parse_duration(const std::string& text);

struct ChosenExperiment {
  Experiment experiment;
  std::string text;  // of a file that repeats it, with comments
};

struct RecipeArguments {
  std::string test, time_budget;
  bool choose = false;

  // Adds TEST, --choose and --time-budget.
  void add_to(CLI::App& verb);
  // Whether something is to be chosen; else the experiment is a file that says everything.
  bool used() const { return choose || !test.empty() || !time_budget.empty(); }
  // Tells `reporter` what is chosen, and why. `arguments.file` is the training data if `test` is given, else a file with
  // some of the keys.
  ChosenExperiment make(const ExperimentArguments& arguments, Reporter& reporter) const;
  // Of the run: that of the training data, or of its folder if the file is only called "train".
  std::string run_name(const ExperimentArguments& arguments) const;
};

}  // namespace modelet::cli
