#include "scheduler/cli/verbs/report.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "base/version.h"
#include "node_agent/machine/capacity.h"
#include "scheduler/cli/model/run_samples.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/cli/report/judgement.h"
#include "scheduler/cli/report/report_page.h"
#include "scheduler/cli/report/run_log.h"
#include "scheduler/client/report.h"
#include "scheduler/plan/bytes_text.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using scheduler::bytes_text;

struct ReportOptions {
  std::string run, out, labels;
  bool text = false, force = false;
  size_t samples = 0;  // 0: the default of the form
  uint32_t threads = 0;
};

// "1,234,567".
std::string grouped(double number) {
  std::string digits = fmt::format("{:.0f}", number);
  for (size_t place = digits.size(); place > 3; place -= 3) digits.insert(place - 3, 1, ',');
  return digits;
}

// "57.6  46.1  37.5": the figures of a metric at 1, 3 and 5; empty if the event lacks one.
std::string shares_text(const json& event, const std::string& metric) {
  std::string text;
  for (const char* k : {"1", "3", "5"}) {
    const auto found = event.find(metric + "_at_" + k);
    if (found == event.end() || !found->is_number()) return "";
    text += fmt::format("{}{:.1f}", text.empty() ? "" : "  ", 100 * found->get<double>());
  }
  return text;
}

void print_figure(const std::string& title, const std::string& text) {
  std::cout << fmt::format("{:<23}{}\n", title, text);
}

// What all nodes would send in a step if they exchanged their whole gradients in a ring.
double dense_bytes(const json& started) {
  constexpr double kBytesOfGradient = 4;
  const double nodes = figure_of(started, "nodes");
  return 2 * (nodes - 1) / nodes * figure_of(started, "parameters") * kBytesOfGradient;
}

void print_figures(const json& started, const json& finished) {
  std::cout << fmt::format(
      "{} parameters, {} features, {} labels, {} training samples; {:.0f} node(s) x {:.0f} thread(s)\n\n",
      grouped(figure_of(started, "parameters")), grouped(figure_of(started, "features")),
      grouped(figure_of(started, "labels")), grouped(figure_of(started, "train_rows")),
      figure_of(started, "nodes"), figure_of(started, "threads"));
  for (const char* k : {"1", "3", "5"})
    print_figure(std::string("P@") + k,
                 fmt::format("{:.1f} %", 100 * figure_of(finished, (std::string("p_at_") + k).c_str())));
  if (finished.contains("best_step"))
    print_figure("held-out P@1, 3, 5",
                 fmt::format("{} %, best of the run, at step {}",
                             shares_text(finished.value("validation", json::object()), "p"),
                             grouped(figure_of(finished, "best_step"))));
  for (const auto& [metric, title] : {std::pair("ndcg", "nDCG@1, 3, 5"), std::pair("psp", "PSP@1, 3, 5"),
                                      std::pair("recall", "recall@1, 3, 5")})
    if (const std::string shares = shares_text(finished, metric); !shares.empty())
      print_figure(title, shares + " %");
  if (finished.contains("auc"))
    print_figure("AUC, log-loss",
                 fmt::format("{:.4f}  {:.4f}", figure_of(finished, "auc"), figure_of(finished, "log_loss")));
  // 0: the run was resumed at its end, and had nothing to train.
  const double rate = figure_of(finished, "samples_per_second");
  print_figure("training", fmt::format("{:.1f} s, {} steps{}", figure_of(finished, "train_seconds"),
                                       grouped(figure_of(finished, "steps")),
                                       rate > 0 ? fmt::format(", {} samples/s", grouped(rate)) : ""));
  if (figure_of(started, "nodes") > 1) {
    const double sent = figure_of(finished, "bytes_sent_per_node_per_step"), dense = dense_bytes(started);
    print_figure("sent per node and step", bytes_text(static_cast<uint64_t>(sent)));
    print_figure("a dense all-reduce",
                 fmt::format("{} (ring, all gradients in fp32; computed): {} times as much",
                             bytes_text(static_cast<uint64_t>(dense)), grouped(dense / std::max(sent, 1.0))));
  }
  print_figure("memory", bytes_text(static_cast<uint64_t>(figure_of(finished, "peak_rss_bytes"))) +
                             " at the peak of the largest process");
  print_figure("checkpoint", fs::relative(text_of(finished, "checkpoint")).string());
}

std::string names_text(const std::vector<JudgedLabel>& labels) {
  std::string text;
  for (const JudgedLabel& label : labels)
    text += fmt::format("{}{}{}", text.empty() ? "" : "  ", label.right ? "*" : "", label.name);
  return text;
}

void print_examples(const Judgement& judgement) {
  if (judgement.first.empty()) return;
  std::cout << fmt::format("\nThe first {} test samples with several labels (* = a true label):\n",
                           judgement.first.size());
  for (const JudgedSample& sample : judgement.first)
    std::cout << fmt::format("\nsample {}\n  true       {}\n  predicted  {}\n", sample.sample,
                             names_text(sample.truth), names_text(sample.predicted));
}

// The model of the run and what it says of the test data. Either may be missing; `note` says why.
struct Judged {
  std::optional<shard::CheckpointIndex> index;
  std::optional<Judgement> judgement;
  bool has_names = false;
  std::string note;
};

Judged judge_run(const ReportOptions& options, size_t samples) {
  Judged found;
  try {
    shard::Model model = agent::load_model(options.run, options.threads, options.labels);
    found.index = model.index();
    found.has_names = !model.label_names().empty();
    const shard::Dataset data = test_data(model, "what the model says of it is not in the report");
    found.judgement = judge(model, data, samples);
  } catch (const UsageError& error) {
    found.note = error.what();
  }
  return found;
}

void print_text(const ReportOptions& options) {
  const std::vector<json> events = read_run_log(options.run);
  if (!has_finished(events))
    throw Error(fmt::format("{} has not finished; continue it with: modelet train ... --resume {}",
                            options.run, options.run));
  print_figures(*last_event(events, "started"), *last_event(events, "finished"));
  constexpr size_t kSamples = 3;
  const Judged judged = judge_run(options, options.samples > 0 ? options.samples : kSamples);
  // Without names there is nothing to read.
  if (judged.judgement && judged.has_names) print_examples(*judged.judgement);
  if (!judged.note.empty()) std::cerr << judged.note << '\n';
}

json to_json(const JudgedLabel& label) {
  json object = {{"label", label.label}};
  if (!label.name.empty()) object["name"] = label.name;
  return object;
}

json to_json(const Judgement& judgement) {
  json hardest = json::array(), wrong = json::array();
  for (const JudgedLabel& label : judgement.hardest) {
    hardest.push_back(to_json(label));
    hardest.back().update({{"samples", label.samples}, {"recall", label.recall}});
  }
  for (const JudgedSample& sample : judgement.wrong) {
    json truth = json::array(), predicted = json::array();
    for (const JudgedLabel& label : sample.truth) truth.push_back(to_json(label));
    for (const JudgedLabel& label : sample.predicted) {
      predicted.push_back(to_json(label));
      predicted.back().update({{"score", label.score}, {"right", label.right}});
    }
    wrong.push_back({{"sample", sample.sample}, {"truth", truth}, {"predicted", predicted}});
  }
  return {{"depth", judgement.depth},
          {"samples", judgement.samples},
          {"wrong_samples", judgement.wrong_samples},
          {"fewest_samples", judgement.fewest_samples},
          {"hardest", hardest},
          {"wrong", wrong}};
}

std::string layer_title(LayerKind kind, uint32_t layer) {
  if (kind == LayerKind::kInput) return "input";
  return kind == LayerKind::kOutput ? "output" : fmt::format("hidden {}", layer);
}

// How many modelets, neurons and bytes each layer has.
json layers_json(const shard::CheckpointIndex& index) {
  json layers = json::array();
  std::map<std::string, size_t> places;
  for (const shard::CheckpointEntry& modelet : index.modelets) {
    const std::string title = layer_title(modelet.spec.kind, modelet.spec.layer);
    const auto [place, is_new] = places.try_emplace(title, layers.size());
    if (is_new)
      layers.push_back({{"layer", title}, {"modelets", 0}, {"neurons", uint64_t{0}}, {"bytes", uint64_t{0}}});
    json& layer = layers[place->second];
    layer["modelets"] = layer["modelets"].get<uint64_t>() + 1;
    layer["neurons"] = layer["neurons"].get<uint64_t>() + modelet.spec.neurons();
    layer["bytes"] = layer["bytes"].get<uint64_t>() + modelet.digest.bytes;
  }
  return layers;
}

// The names of the nodes that trained last.
json nodes_json(const std::vector<json>& events) {
  json names = json::array();
  for (auto event = events.rbegin(); event != events.rend() && names.empty(); ++event) {
    const auto nodes = event->find("nodes");
    if (text_of(*event, "event") != "progress" || nodes == event->end() || !nodes->is_array()) continue;
    for (const json& node : *nodes) names.push_back(text_of(node, "node"));
  }
  return names;
}

std::string experiment_text(const fs::path& run) {
  constexpr size_t kMostBytes = 1 << 20;
  const fs::path file = run / "experiment.toml";
  return fs::is_regular_file(file) ? read_text_file(file, kMostBytes) : "";
}

void write_page(const ReportOptions& options) {
  const std::string out =
      options.out.empty() ? (fs::path(options.run) / "report.html").string() : options.out;
  require_writable(out, options.force || options.out.empty());
  const std::vector<json> events = read_run_log(options.run);
  constexpr size_t kSamples = 12, kMostPoints = 4000;
  const Judged judged = judge_run(options, options.samples > 0 ? options.samples : kSamples);
  const fs::path folder = fs::absolute(options.run).lexically_normal();
  const fs::path named = folder.has_filename() ? folder : folder.parent_path();
  json report = {{"name", named.filename().string()},
                 {"folder", named.string()},
                 {"version", kVersion},
                 {"made", utc_text(std::chrono::system_clock::now())},
                 {"events", shortened(events, kMostPoints)},
                 {"experiment", experiment_text(options.run)},
                 {"nodes", nodes_json(events)},
                 {"layers", judged.index ? layers_json(*judged.index) : json::array()},
                 {"note", judged.note}};
  if (judged.judgement) report["judged"] = to_json(*judged.judgement);
  AtomicFile file(out);
  file.write(report_page(report));
  file.commit();
  std::cout << out << '\n';
}

}  // namespace

void add_report_verb(CLI::App& app) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App& verb = *app.add_subcommand("report", "Write what came out of a run as a page in one file");
  verb.add_option("run", options->run, "run folder: of modelet train, or of modelet fetch")
      ->required()
      ->check(CLI::ExistingDirectory);
  CLI::Option& out =
      *verb.add_option("--out", options->out, "the file (default: report.html in the run folder)");
  verb.add_flag("--text", options->text, "print the figures and some predictions instead")->excludes(&out);
  verb.add_option(
          "--samples", options->samples,
          "test samples to show predictions for (default: 12 whose prediction is wrong; with --text 3)")
      ->check(CLI::Range(size_t{1}, size_t{1000}));
  verb.add_option("--labels", options->labels,
                  "names of the labels, one a line (default: data.labels of the run)");
  verb.add_option("--threads", options->threads, "0: all cores")
      ->check(CLI::Range(0u, 1024u))
      ->capture_default_str();
  add_force_flag(verb, options->force);
  verb.footer(
      "The page has curves, events, times of nodes, settings, the hardest labels and wrong predictions. It needs no "
      "server and asks nobody for anything.\n"
      "Examples:\n"
      "  modelet report runs/deps\n"
      "  modelet report runs/deps --out deps.html --samples 30\n"
      "  modelet report runs/deps --text");
  verb.callback([options] {
    if (options->text)
      print_text(*options);
    else
      write_page(*options);
  });
}

}  // namespace modelet::cli
