#include "scheduler/cli/verbs/labels.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/process.h"
#include "node_agent/machine/capacity.h"
#include "node_agent/train/labels/change_labels.h"
#include "scheduler/cli/options/output.h"
#include "scheduler/client/report.h"

namespace modelet::cli {
namespace {

using agent::ChangedLabels;

struct LabelsOptions {
  std::string run, samples, names, background, from, to;
  std::vector<std::string> labels;
  uint32_t threads = 0;
  bool no_fit = false, json = false;
};

void print_change(const LabelsOptions& options, const char* what, const ChangedLabels& changed) {
  if (options.json)
    return print_line(agent::to_json(changed, what));
  std::cout << fmt::format("{} {} label{}; the model of {} labels is in {}\n", what, changed.changed, changed.changed == 1 ? "" : "s",
                           changed.labels, changed.checkpoint.string());
}

// Carries out a change, which Ctrl-C ends without any effect.
template <class Change>
void change(const LabelsOptions& options, const char* what, const Change& make) {
  std::atomic<bool> stop{false};
  const StopSignals signals([&stop] { stop = true; });
  constexpr double kShowEvery = 5;  // seconds
  Reporter reporter(options.json);
  SteadyClock clock;
  double shown = clock.now();
  agent::AddOptions with;
  with.threads = options.threads == 0 ? agent::usable_cores() : options.threads;
  with.progress = [&](std::string_view work, double share) {
    if (stop) throw Interrupted("nothing was changed");
    if (clock.now() < shown + kShowEvery) return;
    shown = clock.now();
    reporter.note(fmt::format("{}: {:.0f} %", work, 100 * share));
  };
  print_change(options, what, make(with));
}

void add(const LabelsOptions& options) {
  change(options, "added", [&](agent::AddOptions& with) {
    with.names = options.names;
    with.background = options.background;
    with.fit = !options.no_fit;
    ChangedLabels changed = agent::add_labels(options.run, options.samples, with);
    if (changed.background == 0 && !options.no_fit)
      Reporter(options.json).note("the training data is not here, so the new labels are known by their mean samples only; --background FILE "
                                  "gives samples to tell them from");
    return changed;
  });
}

void learn(const LabelsOptions& options) {
  change(options, "corrected", [&](agent::AddOptions& with) {
    with.background = options.background;
    return agent::learn(options.run, options.samples, with);
  });
}

void remove(const LabelsOptions& options) {
  change(options, "removed",
         [&](const agent::ChangeOptions& with) { return agent::remove_labels(options.run, options.labels, with); });
}

void rename(const LabelsOptions& options) {
  change(options, "renamed",
         [&](const agent::ChangeOptions& with) { return agent::rename_label(options.run, options.from, options.to, with); });
}

CLI::App& add_change(CLI::App& app, const char* name, const char* description, const std::shared_ptr<LabelsOptions>& options,
                     void (*body)(const LabelsOptions&)) {
  CLI::App& verb = *app.add_subcommand(name, description);
  verb.add_option("run", options->run, "folder of a run; its model becomes a new checkpoint")->required()->check(CLI::ExistingDirectory);
  verb.add_option("--threads", options->threads, "0: all cores");
  verb.add_flag("--json", options->json, "one JSON object instead of text");
  verb.callback([options, body] { body(*options); });
  return verb;
}

}  // namespace

void add_labels_verb(CLI::App& app) {
  CLI::App& verb = *app.add_subcommand("labels", "Add, remove and rename the labels of a trained model");
  verb.require_subcommand(1);
  verb.footer(
      "Each change is a new checkpoint of the run; the one before stays.\n"
      "Examples:\n"
      "  modelet labels add runs/shop new-products.txt\n"
      "  modelet labels remove runs/shop 'Blue Kettle'\n"
      "  modelet labels rename runs/shop Ketle Kettle");

  const auto added = std::make_shared<LabelsOptions>();
  CLI::App& add_verb = add_change(verb, "add", "Add the labels of some samples that the model does not have", added, add);
  add_verb.add_option("samples", added->samples, "text as the training data; one sample for each new label is enough, such as its title")
      ->required()
      ->check(CLI::ExistingFile);
  add_verb.add_option("--names", added->names, "names of the new labels, one a line, if the data is XMC text")->check(CLI::ExistingFile);
  add_verb.add_option("--background", added->background, "samples to tell the new labels from (default: the training data)")
      ->check(CLI::ExistingFile);
  add_verb.add_flag("--no-fit", added->no_fit, "know new labels by their mean sample only, which takes less time");
  add_verb.footer(
      "The scores of other labels do not change. A server of the run loads the new checkpoint by itself.\n"
      "Example:\n  modelet labels add runs/shop new-products.txt");

  const auto removed = std::make_shared<LabelsOptions>();
  CLI::App& remove_verb = add_change(verb, "remove", "Remove labels, which are never again answers; the numbers of others stay", removed, remove);
  remove_verb.add_option("labels", removed->labels, "names or, if labels have none, numbers")->required();
  remove_verb.footer("Example:\n  modelet labels remove runs/shop 'Blue Kettle' 'Red Kettle'");

  const auto renamed = std::make_shared<LabelsOptions>();
  CLI::App& rename_verb = add_change(verb, "rename", "Give a label another name", renamed, rename);
  rename_verb.add_option("from", renamed->from, "its name now")->required();
  rename_verb.add_option("to", renamed->to, "its new name")->required();
  rename_verb.footer("Example:\n  modelet labels rename runs/shop Ketle Kettle");
}

void add_learn_verb(CLI::App& app) {
  const auto options = std::make_shared<LabelsOptions>();
  CLI::App& verb = add_change(app, "learn", "Correct a trained model with some samples", options, learn);
  verb.add_option("samples", options->samples, "text as the training data, with the right labels")->required()->check(CLI::ExistingFile);
  verb.add_option("--background", options->background, "samples as in training, so that nothing is forgotten (default: the training data)")
      ->check(CLI::ExistingFile);
  verb.footer(
      "Only the labels of the samples change. A server of the run loads the new checkpoint by itself.\n"
      "Example:\n  modelet learn runs/shop corrections.txt");
}

}  // namespace modelet::cli
