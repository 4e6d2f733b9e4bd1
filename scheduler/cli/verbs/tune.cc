#include "scheduler/cli/verbs/tune.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/system/file.h"
#include "base/system/program.h"
#include "node_agent/train/recipe/tune.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/cli/options/output.h"
#include "shard/data/store/dataset.h"

namespace modelet::cli {
namespace {

using nlohmann::json, nlohmann::ordered_json;

struct TuneOptions {
  ExperimentArguments experiment;
  agent::TuneOptions tune;
  bool json = false;
};

// The keys that a trial chooses, with their values, in the order of an experiment file.
ordered_json keys_of(const Experiment::Sampling& s) {
  return {{"retrieval", spelling(s.retrieval)},
          {"rank", s.rank},
          {"family", spelling(s.family)},
          {"tables", s.tables},
          {"bits", s.bits},
          {"bucket", s.bucket},
          {"candidates", s.candidates}};
}

json to_json(const agent::TuneTrial& trial) {
  json line = keys_of(trial.sampling);
  line.update(
      {{"recall", trial.recall}, {"seconds_per_step", trial.seconds_per_step}, {"slowdown", trial.slowdown}});
  return line;
}

std::string describe(const Experiment::Sampling& s) {
  if (s.retrieval == RetrievalKind::kLowRank)
    return fmt::format("low-rank projections of rank {}, {} candidates", s.rank, s.candidates);
  return fmt::format("{}, {} tables of 2^{} buckets of {}, {} candidates", spelling(s.family), s.tables,
                     s.bits, s.bucket, s.candidates);
}

void write_tuned(const std::filesystem::path& path, const TuneOptions& options,
                 const agent::TuneTrial& trial) {
  std::string keys;  // JSON and TOML write numbers and strings alike
  const ordered_json chosen = keys_of(trial.sampling);
  for (const auto& [key, value] : chosen.items()) keys += fmt::format("{} = {}\n", key, value.dump());
  AtomicFile file(path);
  file.write(std::string_view(
      fmt::format("# Made by modelet tune --slowdown {} --steps {}: finds {:.0f} % of the best neurons that "
                  "are not common;\n# a step takes {:.2f} times as long as one with uniform draws.\n"
                  "# modelet train takes these where the experiment file and --set say nothing. Remove the "
                  "file to undo it.\n"
                  "[sampling]\n{}",
                  options.tune.slowdown, options.tune.steps, 100 * trial.recall, 1 + trial.slowdown, keys)));
  file.commit();
}

void tune(const TuneOptions& options) {
  const Experiment experiment = options.experiment.load();
  Reporter reporter(options.json);
  const ExperimentData data = load_data(experiment, reporter, {});
  const agent::TuneResult result =
      agent::tune_retrieval(experiment, data.train, data.shape, options.tune, [&](size_t done, size_t of) {
        if (done == of || done % 9 == 0) reporter.note(fmt::format("{} of {} settings measured", done, of));
      });
  const agent::TuneTrial& chosen = result.trials[result.chosen];
  const std::filesystem::path path = tuned_file(options.experiment.file);
  write_tuned(path, options, chosen);
  if (options.json) {
    for (const agent::TuneTrial& trial : result.trials) {
      json line = to_json(trial);
      line["event"] = "trial";
      print_line(line);
    }
    json line = to_json(chosen);
    line.update({{"event", "tuned"}, {"file", path.string()}});
    print_line(line);
    return;
  }
  std::cout << fmt::format("{}: {}; recall {:.2f}, {:.2f} times a uniform step\n", path.string(),
                           describe(chosen.sampling), chosen.recall, 1 + chosen.slowdown);
}

}  // namespace

void add_tune_verb(CLI::App& app) {
  const auto options = std::make_shared<TuneOptions>();
  CLI::App& verb = *app.add_subcommand(
      "tune", "Measure which low-rank projections or hash tables fit an experiment's data and width");
  options->experiment.add_to(verb);
  verb.add_option("--slowdown", options->tune.slowdown,
                  "time that retrieval may add to a step, as a share of a step with uniform draws")
      ->check(number_between(0.0, 100.0))
      ->capture_default_str();
  verb.add_option("--steps", options->tune.steps, "training steps before the retrieval is measured")
      ->check(CLI::Range(1u, 100000u))
      ->capture_default_str();
  verb.add_flag("--json", options->json, "JSON Lines: every setting that was measured, then the chosen one");
  verb.footer(
      "Trains for a few steps with uniform draws, then measures low-rank projections, hash families, tables,\n"
      "buckets and candidates, and writes the one that finds most in the time it may take to\n"
      "EXPERIMENT.tuned.toml, where modelet train finds it (modes lsh and lsh_per_sample; keys in the\n"
      "experiment file and --set win).\n"
      "Examples:\n"
      "  modelet tune experiments/debian-deps.toml\n"
      "  modelet tune experiments/debian-deps.toml --slowdown 1 --steps 1000 --json");
  verb.callback([options] { tune(*options); });
}

}  // namespace modelet::cli
