#include "scheduler/cli/options/recipe.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/experiment/column_use.h"
#include "base/experiment/fields.h"
#include "base/experiment/reader.h"
#include "base/system/file.h"
#include "base/system/program.h"
#include "node_agent/machine/capacity.h"
#include "node_agent/train/recipe/choice_text.h"
#include "node_agent/train/recipe/choose_for_data.h"
#include "scheduler/cli/options/hold_out.h"
#include "scheduler/cli/options/label_texts.h"
#include "scheduler/plan/task_plan.h"
#include "shard/data/encode/guess.h"
#include "shard/data/read/json_lines.h"

namespace modelet::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kMostSeconds = 1000 * 3600;

// Training and test data as settings.
std::vector<std::string> with_paths(const std::string& train, const std::string& test,
                                    const std::vector<std::string>& overrides) {
  std::vector<std::string> settings = {"data.train=" + toml_text(absolute(train)),
                                       "data.test=" + toml_text(absolute(test))};
  settings.insert(settings.end(), overrides.begin(), overrides.end());
  return settings;
}

// A tenth of the records becomes test data. `open`: columns whose options are guessed.
std::string held_out(std::string& train, const std::vector<std::string>& overrides, const std::set<std::string>& open,
                     const fs::path& folder, Reporter& reporter) {
  const agent::GivenKeys given = agent::given_settings("the command line", with_paths(train, train, overrides));
  Experiment::Csv csv = given.experiment.csv;
  const bool is_json = shard::is_json_lines(fs::path(train));
  if (!given.keys.contains("csv.delimiter") && !is_json) csv.delimiter = shard::guess_delimiter(train);
  shard::guess_columns(train, csv, column_uses(given.experiment.columns), open);  // a misspelt name, before files are written
  const DividedTable parts =
      hold_out(train, folder, csv.header && !is_json, csv.delimiter != Delimiter::kTab && !is_json, given.experiment.train.seed);
  reporter.note(fmt::format("held out for the test: {} of {} records, {}", parts.held_out, parts.records,
                            parts.test.string()));
  train = parts.train.string();
  return parts.test.string();
}

// The training data with pieces of the labels' texts (--label-texts) as further samples; these alone if it is the same file.
std::string with_label_texts(const RecipeArguments& recipe, const std::string& train, const std::string& test,
                             const std::vector<std::string>& overrides, const fs::path& folder, Reporter& reporter) {
  std::error_code failure;
  const bool alone = fs::equivalent(train, recipe.label_texts, failure);
  const std::string& like = alone ? test : train;
  const agent::GivenKeys given = agent::given_settings("the command line", with_paths(like, like, overrides));
  std::unique_ptr<SampleText> samples;
  if (recipe.target.empty())
    samples = std::make_unique<LabelledLine>(like, encoding_of(given.experiment));
  else
    samples = std::make_unique<TableRecord>(like, recipe.target, given.experiment, given.keys.contains("csv.delimiter"), !alone);
  const TextsOfLabels added = add_label_texts(alone ? "" : train, recipe.label_texts, *samples, folder);
  reporter.note(fmt::format("{} pieces of the texts of {} labels are {}samples: {}", added.pieces, added.labels, alone ? "the " : "",
                            added.train.string()));
  return added.train.string();
}

agent::GivenKeys given_by(const RecipeArguments& recipe, const ExperimentArguments& arguments,
                          const fs::path& folder, Reporter& reporter) {
  if (!recipe.from_data() && !recipe.label_texts.empty())
    throw UsageError("--label-texts goes with training data: modelet train TRAIN TEST --label-texts FILE");
  if (!recipe.from_data()) return agent::given_in_file(arguments.file, arguments.overrides);
  std::vector<std::string> overrides = arguments.overrides;
  const std::string key = "columns." + recipe.target;
  const bool is_given =
      std::ranges::any_of(overrides, [&](const std::string& each) { return each.starts_with(key + "="); });
  if (!recipe.target.empty()) {
    if (fs::path(arguments.file).extension() == ".toml")
      throw UsageError("--target goes with training data, and " + arguments.file +
                       " is an experiment file: name its target in [columns]");
    if (recipe.target.find('=') != std::string::npos)
      throw UsageError("--target " + recipe.target + ": a name with a = cannot be a key; rename the column");
    overrides.insert(overrides.begin(), key + "=" + std::string(spelling(ColumnType::kTarget)));
  }
  std::string train = arguments.file, test = recipe.test;
  const std::set<std::string> open = is_given ? std::set<std::string>() : std::set<std::string>{recipe.target};
  if (test.empty()) test = held_out(train, overrides, open, folder, reporter);
  if (!recipe.label_texts.empty()) train = with_label_texts(recipe, train, test, overrides, folder, reporter);
  agent::GivenKeys given = agent::given_settings("the command line", with_paths(train, test, overrides));
  if (recipe.target.empty()) return given;
  const DataFormat format = given.experiment.data.format;
  if (format != DataFormat::kAuto && format != DataFormat::kColumns)
    throw UsageError(fmt::format("--target is for data.format = columns, and {} is given: leave one of them out",
                                 spelling(format)));
  // What is left open is how the target's cells are divided, and the other columns.
  given.keys.erase("data.format");
  if (!is_given) given.keys.erase(key);
  return given;
}

// Plans as a pool of so many processes of this machine does, which talk without a wire.
struct PlannedHere {
  uint32_t count;

  bool operator()(const Experiment& network, const Experiment& towers, const agent::DataFacts& facts) const {
    constexpr scheduler::Link kLoopback{.bytes_per_second = 2e9, .round_trip_seconds = 5e-5};
    const uint32_t threads = network.train.threads > 0 ? network.train.threads : std::max(1u, agent::usable_cores() / count);
    const agent::Speed speed = agent::measure_speed(threads);
    const std::vector<scheduler::NodeCapacity> nodes(count, {.name = "node",
                                                             .cores = threads,
                                                             .memory_bytes = agent::known_memory("leave --nodes out") / count,
                                                             .gflops = speed.gflops,
                                                             .memory_gbps = speed.memory_gbps,
                                                             .bf16_gflops = speed.bf16_gflops});
    const DataShape shape = agent::shape_of(facts);
    try {
      return scheduler::plan_tasks(towers, shape, nodes, kLoopback).makespan <
             scheduler::plan_network(network, shape, nodes, kLoopback).on_all_nodes;
    } catch (const Error&) {
      return false;  // a node has no room for a tower
    }
  }
};

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
  verb.add_option("--target", target,
                  "column of the labels, if EXPERIMENT is a table (CSV, TSV, JSON Lines): then the types of the other columns are "
                  "guessed; without TEST, a tenth of the records is held out for the test");
  verb.add_option("--label-texts", label_texts,
                  "a label's name, a tab and a text about it on each line: pieces of the texts become training samples of their "
                  "labels; the same file as EXPERIMENT: nothing else does")
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
  if (!from_data()) return named.run_name();
  fs::path path = absolute(arguments.file);
  const fs::path folder = path.parent_path();
  while (path.has_extension()) path = path.filename().stem();
  named.file = path == "train" && folder.has_filename() ? folder.filename() : path;
  return named.run_name();
}

ChosenExperiment RecipeArguments::make(const ExperimentArguments& arguments, const fs::path& folder, uint32_t nodes,
                                       Reporter& reporter) const {
  agent::ChooseOptions options{.nodes = nodes};
  if (nodes > 1) options.towers_are_faster = PlannedHere{nodes};
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
  const agent::Choice choice = agent::choose_for_data(given_by(*this, arguments, folder, reporter), load, options, on_trial);
  reporter.handle(agent::to_json(choice));
  for (const std::string& line : agent::to_lines(choice)) reporter.note(line);
  return {choice.experiment, agent::to_commented_toml(choice)};
}

}  // namespace modelet::cli
