#include "scheduler/cli/options/recipe.h"

#include <spdlog/fmt/fmt.h>

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/experiment/fields.h"
#include "base/experiment/reader.h"
#include "base/system/file.h"
#include "base/system/program.h"
#include "node_agent/train/recipe/choice_text.h"
#include "node_agent/train/recipe/choose_for_data.h"

namespace modelet::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kMostSeconds = 1000 * 3600;
constexpr size_t kMostFileBytes = size_t{1} << 20;

agent::GivenKeys given_by(const ExperimentArguments& arguments, const std::string& test) {
  if (test.empty())
    return {arguments.load(),
            given_keys(read_text_file(arguments.file, kMostFileBytes), arguments.file, arguments.overrides)};
  std::vector<std::string> overrides = {"data.train=" + toml_text(absolute(arguments.file)),
                                        "data.test=" + toml_text(absolute(test))};
  overrides.insert(overrides.end(), arguments.overrides.begin(), arguments.overrides.end());
  return agent::given_settings("the command line", std::move(overrides));
}

}  // namespace

double parse_duration(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  const double seconds = unit == "s" ? number : unit == "m" ? 60 * number : unit == "h" ? 3600 * number : 0;
  if (error != std::errc() || !(seconds > 0 && seconds <= kMostSeconds))
    throw UsageError("--time-budget " + text +
                     ": write a number and s, m or h, such as 90s, 5m or 1.5h; at most 1000h");
  return seconds;
}

void RecipeArguments::add_to(CLI::App& verb) {
  verb.add_option("test", test,
                  "test data, if EXPERIMENT is training data: then the keys are chosen for the data")
      ->check(CLI::ExistingFile);
  verb.add_flag("--choose", choose, "choose the keys that the experiment file and --set leave open");
  verb.add_option("--time-budget", time_budget,
                  "time for choosing, training and evaluation, such as 90s, 5m, 1.5h: the best that fits in; "
                  "chooses what is left open");
  verb.add_option(
          "--trial-share", trial_share,
          "the most time that trials of other settings may take, as a share of the estimated training "
          "time; 0: no trials (default: 0.25; with --time-budget at most 0.15 of it; chooses what is left open)")
      ->check(number_between(0.0, 100.0));
}

std::string RecipeArguments::run_name(const ExperimentArguments& arguments) const {
  ExperimentArguments named = arguments;
  if (test.empty()) return named.run_name();
  fs::path path = absolute(arguments.file);
  const fs::path folder = path.parent_path();
  while (path.has_extension()) path = path.filename().stem();
  named.file = path == "train" && folder.has_filename() ? folder.filename() : path;
  return named.run_name();
}

ChosenExperiment RecipeArguments::make(const ExperimentArguments& arguments, Reporter& reporter) const {
  agent::ChooseOptions options;
  if (!time_budget.empty()) options.seconds = parse_duration(time_budget);
  if (trial_share) options.trial_share = *trial_share;
  const auto load = [&](const Experiment& experiment) {
    ExperimentData data = load_data(experiment, reporter, {});
    const uint64_t test_rows = data.test.rows();
    return agent::LoadedData{std::move(data.train), test_rows};
  };
  const auto on_trial = [&](size_t trial, size_t trials, const std::string& name) {
    reporter.note(fmt::format("trial {} of at most {}: {}", trial, trials, name));
  };
  const agent::Choice choice = agent::choose_for_data(given_by(arguments, test), load, options, on_trial);
  reporter.handle(agent::to_json(choice));
  for (const std::string& line : agent::to_lines(choice)) reporter.note(line);
  return {choice.experiment, agent::to_commented_toml(choice)};
}

}  // namespace modelet::cli
