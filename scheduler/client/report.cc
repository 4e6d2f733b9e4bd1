#include "scheduler/client/report.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "node_agent/train/progress/preparing.h"
#include "scheduler/plan/bytes_text.h"

namespace modelet::cli {
namespace {

using nlohmann::json;

// Returns nothing for a number that is not finite, which is sent as null.
std::optional<double> number(const json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || !found->is_number() || !std::isfinite(found->get<double>()))
    return std::nullopt;
  return found->get<double>();
}

uint64_t count(const json& event, const char* key) {
  const double value = number(event, key).value_or(0);
  return value > 0 && value < 1e18 ? static_cast<uint64_t>(value) : 0;
}

std::string line_of(const json& event) { return event.dump(-1, ' ', false, json::error_handler_t::replace); }

// Returns "" if the event is no object or has no such text.
std::string text(const json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// "; continue with --resume ...", or how to bring the checkpoint from the pool; empty if there is none.
std::string way_on(const std::string& checkpoint) {
  if (checkpoint.empty()) return "";
  return checkpoint.starts_with(kFetch) ? "; " + checkpoint + " brings its last checkpoint"
                                        : "; continue with --resume " + checkpoint;
}

std::string number_text(const json& event, const char* key, const char* format) {
  const auto value = number(event, key);
  return value ? fmt::format(fmt::runtime(format), *value) : "?";
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<uint64_t>(std::clamp(seconds, 0.0, 1e9));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

// For events about bytes that are being sent or fetched.
std::string rate_and_eta_text(const json& event) {
  return fmt::format("{}/s  ETA {}", scheduler::bytes_text(count(event, "bytes_per_second")),
                     duration_text(number(event, "eta_seconds").value_or(0)));
}

// "  P@1 0.6614  P@3 ...": those of the metrics in `names` that the event has.
std::string figures_text(const json& event, std::initializer_list<const char*> names) {
  std::string result;
  for (const char* name : names)
    if (const auto value = number(event, name))
      result += fmt::format("  {} {:.4f}", figure_title(name), *value);
  return result;
}

std::string main_figures_text(const json& event) {
  const auto main = {"p_at_1", "p_at_3", "p_at_5", "auc", "log_loss"};
  const std::string figures = figures_text(event, main);
  const auto validation = event.find("validation");
  if (validation == event.end()) return figures;
  return "  validation" + figures_text(*validation, main) + (figures.empty() ? "" : "  test" + figures);
}

// "  slowest node-2 +34 %" if a node computes notably longer than the others do in the mean.
std::string slowest_text(const json& event) {
  constexpr double kNotable = 1.15;
  const auto nodes = event.find("nodes");
  if (nodes == event.end() || !nodes->is_array() || nodes->size() < 2) return "";
  double sum = 0, most = 0;
  std::string slowest;
  for (const json& node : *nodes) {
    if (!node.is_object()) return "";
    const double seconds = number(node, "compute_seconds").value_or(0);
    sum += seconds;
    if (seconds <= most) continue;
    most = seconds;
    slowest = text(node, "node");
  }
  const double others = (sum - most) / static_cast<double>(nodes->size() - 1);
  if (others <= 0 || most < kNotable * others) return "";
  return fmt::format("  slowest {} +{:.0f} %", slowest, 100 * (most / others - 1));
}

// "tower 3/16  " if the event is of a tower.
std::string tower_text(const json& event) {
  const uint64_t tower = count(event, "tower");
  return tower > 0 ? fmt::format("tower {}/{}  ", tower, count(event, "towers")) : "";
}

// "200/800"; "200" if the total is not known: who begins to watch late is not told of the start.
std::string of_total(uint64_t done, uint64_t total) {
  return total > 0 ? fmt::format("{}/{}", done, total) : std::to_string(done);
}

}  // namespace

std::string figure_title(const std::string& name) {
  static const std::pair<const char*, const char*> titles[] = {
      {"p", "P"}, {"ndcg", "nDCG"}, {"mrr", "MRR"}, {"psp", "PSP"}, {"auc", "AUC"}, {"log_loss", "log-loss"}};
  const size_t at = name.find("_at_");
  std::string title = name.substr(0, at);
  for (const auto& [word, shown] : titles)
    if (title == word) title = shown;
  return at == std::string::npos ? title : title + "@" + name.substr(at + 4);
}

Reporter::Reporter(bool json) : Reporter(json, std::cout, std::cerr, terminal_of(STDERR_FILENO)) {}

Reporter::Reporter(bool json, std::ostream& machines, std::ostream& people, const Terminal& terminal)
    : json_(json), machines_(machines), people_(people), terminal_(terminal) {}

Reporter::~Reporter() {
  if (in_progress_line_) people_ << std::endl;
}

void Reporter::record_in(const std::filesystem::path& folder, const std::string& experiment,
                         const std::filesystem::path& labels) {
  journal_.emplace(folder, experiment, labels);
}

void Reporter::handle(const json& event) {
  if (text(event, "event") == "trace") return;  // long, and of use to ChromeTrace alone
  json stamped = event;
  if (event.is_object() && !event.contains("time"))
    stamped["time"] = utc_text(std::chrono::system_clock::now());
  if (text(event, "event") == "checkpoint") checkpoint_ = text(event, "path");
  attempt([&] {
    if (journal_) journal_->add(stamped);
  });
  attempt([&] { pass_on(stamped); });
  if (sink_) sink_(stamped);
}

template <class Write>
void Reporter::attempt(const Write& write) {
  try {
    write();
  } catch (const Error& error) {
    if (!failure_.empty()) return;
    failure_ = error.what();
    line(failure_ + ": events are lost from here on", Style::kWarning);
  }
}

void Reporter::require_success() const {
  if (!failure_.empty()) throw Error(failure_ + how_to_resume());
}

// If the terminal has gone away, people have left the run to itself, so that is no failure.
void Reporter::pass_on(const json& event) {
  errno = 0;
  if (json_) {
    if (!(machines_ << line_of(event) << std::endl)) throw Error(errno_text("standard output"));
  } else {
    if (event.is_object()) show(event);
    if (!people_ && errno == EPIPE) throw Error(errno_text("standard error"));
  }
}

void Reporter::show(const json& event) {
  static constexpr std::pair<std::string_view, void (Reporter::*)(const json&)> kShown[] = {
      {"sending", &Reporter::show_data_on_its_way},
      {"fetching", &Reporter::show_data_on_its_way},
      {"preparing", &Reporter::show_preparing},
      {"submitted", &Reporter::show_submitted},
      {"started", &Reporter::show_started},
      {"tower_started", &Reporter::show_tower_started},
      {"tower_finished", &Reporter::show_tower_finished},
      {"progress", &Reporter::show_progress},
      {"evaluating", &Reporter::show_evaluating},
      {"epoch", &Reporter::show_epoch},
      {"task", &Reporter::show_task},
      {"checkpoint", &Reporter::show_checkpoint},
      {"replanned", &Reporter::show_replanned},
      {"regrouped", &Reporter::show_regrouped},
      {"finished", &Reporter::show_finished},
      {"interrupted", &Reporter::show_interrupted}};
  const std::string kind = text(event, "event");
  for (const auto& [name, show_it] : kShown)
    if (name == kind) (this->*show_it)(event);
}

void Reporter::show_data_on_its_way(const json& event) {
  const uint64_t bytes = count(event, "bytes"), total = count(event, "total_bytes");
  const std::string who = text(event, "event") == "sending" ? "sends" : text(event, "node") + " fetches";
  progress(total > 0 ? static_cast<double>(bytes) / static_cast<double>(total) : 1,
           fmt::format("{} {} data  {} of {}  {}", who, text(event, "data"), scheduler::bytes_text(bytes),
                       scheduler::bytes_text(total), rate_and_eta_text(event)));
}

void Reporter::show_preparing(const json& event) {
  const double done = number(event, "done").value_or(0);
  const uint64_t bytes = count(event, "bytes");  // of text; 0 for synthetic data
  const std::string amount = bytes > 0 ? scheduler::bytes_text(bytes) + "  " + rate_and_eta_text(event)
                                       : fmt::format("{} rows  ETA {}", count(event, "rows"),
                                                     duration_text(number(event, "eta_seconds").value_or(0)));
  const std::string node = text(event, "node");
  progress(done,
           fmt::format("{}prepares {}  {:.0f}%  {}", node.empty() ? "" : node + " ",
                       std::filesystem::path(text(event, "file")).filename().string(), 100 * done, amount));
}

void Reporter::show_evaluating(const json& event) {
  const uint64_t rows = count(event, "rows"), total = count(event, "total_rows");
  progress(total > 0 ? static_cast<double>(rows) / static_cast<double>(total) : 1,
           fmt::format("step {}  evaluates {} data  {} of {} samples  ETA {}",
                       of_total(count(event, "step"), steps_), text(event, "data"), rows, total,
                       duration_text(number(event, "eta_seconds").value_or(0))));
}

void Reporter::show_submitted(const json& event) {
  const uint64_t run = count(event, "run");
  line(fmt::format(
      "run {} submitted; without this command it goes on, and {} {} --out FOLDER brings its files", run,
      kFetch, run));
}

void Reporter::show_started(const json& event) {
  steps_ = count(event, "steps");
  epochs_ = count(event, "epochs");
  line(fmt::format("{}:  {} parameters  {} features  {} labels  {} training rows  {} node(s) x {} thread(s)",
                   text(event, "run"), count(event, "parameters"), count(event, "features"),
                   count(event, "labels"), count(event, "train_rows"), count(event, "nodes"),
                   count(event, "threads")),
       Style::kBold);
}

void Reporter::show_tower_started(const json& event) {
  steps_ = count(event, "steps");
  p_at_1_ = -1;
}

void Reporter::show_tower_finished(const json& event) {
  const std::string shown = fmt::format("{}{} labels  {} steps in {} of training  {} samples/s",
                                        tower_text(event), count(event, "labels"), count(event, "steps"),
                                        duration_text(number(event, "train_seconds").value_or(0)),
                                        number_text(event, "samples_per_second", "{:.0f}"));
  line(shown);
}

void Reporter::show_progress(const json& event) {
  const uint64_t step = count(event, "step");
  std::string shown = fmt::format("{}epoch {}  step {}", tower_text(event),
                                  of_total(count(event, "epoch"), epochs_), of_total(step, steps_));
  if (steps_ > 0) shown += fmt::format("  {}%", 100 * step / steps_);
  shown += fmt::format("  {} samples/s  ETA {}  loss {}", number_text(event, "samples_per_second", "{:.0f}"),
                       duration_text(number(event, "eta_seconds").value_or(0)),
                       number_text(event, "loss", "{:.4f}"));
  if (p_at_1_ >= 0) shown += fmt::format("  P@1 {:.4f}", p_at_1_);
  if (const uint64_t bytes = count(event, "bytes_sent_per_node_per_step"); bytes > 0)
    shown += fmt::format("  {}/step", scheduler::bytes_text(bytes));
  shown += slowest_text(event);
  progress(steps_ > 0 ? static_cast<double>(step) / static_cast<double>(steps_) : 0, shown);
}

// Shows one line for each epoch. If there is no room, the last fields are dropped, so that the fields of all
// lines stay aligned.
void Reporter::show_epoch(const json& event) {
  for (const json& judged : {event, event.value("validation", json::object())})
    p_at_1_ = number(judged, "p_at_1").value_or(p_at_1_);
  if (count(event, "tower") > 0) return;
  const std::string shown =
      fmt::format("epoch {}  loss {}{}  {} of training  step {}", of_total(count(event, "epoch"), epochs_),
                  number_text(event, "loss", "{:.4f}"), main_figures_text(event),
                  duration_text(number(event, "train_seconds").value_or(0)), count(event, "step"));
  print(terminal_.there() ? fitted(shown, terminal_.columns()) : shown, Style::kPlain);
}

void Reporter::show_task(const json& event) {
  line(fmt::format("task {} {} as run {}  ({} of {} done)", count(event, "task"), text(event, "state"),
                   count(event, "run"), count(event, "tasks_done"), count(event, "tasks")),
       Style::kDim);
}

// Without a terminal only what has changed.
void Reporter::show_tasks(uint32_t done, uint32_t at_work, uint32_t tasks, double seconds_left) {
  if (json_) return;
  const std::string shown = fmt::format("{} of {} tasks done  {} at work", done, tasks, at_work);
  if (std::exchange(tasks_, shown) == shown && !terminal_.there()) return;
  progress(static_cast<double>(done) / tasks,
           seconds_left > 0 ? fmt::format("{}  ETA {}", shown, duration_text(seconds_left)) : shown);
}

void Reporter::show_checkpoint(const json& event) {
  if (count(event, "tower") > 0) return;
  line(fmt::format("checkpoint at step {}:  {}", count(event, "step"), text(event, "path")), Style::kDim);
}

void Reporter::show_replanned(const json& event) {
  line(fmt::format("re-planned at step {}:  {} is {} times slower than planned;  moved {} modelets",
                   count(event, "step"), text(event, "node"), number_text(event, "slower", "{:.2f}"),
                   count(event, "moved_modelets")),
       Style::kWarning);
}

void Reporter::show_regrouped(const json& event) {
  const auto nodes = event.find("nodes");
  line(fmt::format("goes on from step {} on {} node(s):  {}", count(event, "step"),
                   nodes != event.end() && nodes->is_array() ? nodes->size() : 0, text(event, "why")),
       Style::kWarning);
}

void Reporter::show_finished(const json& event) {
  if (const uint64_t best = count(event, "best_step"); best > 0)
    line(fmt::format("best by validation: step {}; its weights are tested", best));
  line("finished" + main_figures_text(event), Style::kBold);
  line(fmt::format("  {} steps in {} of training  {} samples/s  {} sent per node and step  peak memory {}",
                   count(event, "steps"), duration_text(number(event, "train_seconds").value_or(0)),
                   number_text(event, "samples_per_second", "{:.0f}"),
                   scheduler::bytes_text(count(event, "bytes_sent_per_node_per_step")),
                   scheduler::bytes_text(count(event, "peak_rss_bytes"))));
  for (const auto& names : {std::initializer_list<const char*>{"ndcg_at_1", "ndcg_at_3", "ndcg_at_5"},
                            {"psp_at_1", "psp_at_3", "psp_at_5"},
                            {"recall_at_1", "recall_at_3", "recall_at_5"}})
    if (const std::string shown = figures_text(event, names); !shown.empty()) line(shown);
  line("checkpoint:  " + text(event, "checkpoint"));
}

void Reporter::show_interrupted(const json& event) {
  line(fmt::format("interrupted at step {}{}", count(event, "step"), way_on(text(event, "checkpoint"))),
       Style::kWarning);
}

void Reporter::note(const std::string& text) { line(text); }

std::string Reporter::how_to_resume() const { return way_on(checkpoint_); }

void Reporter::clear_progress() {
  if (std::exchange(in_progress_line_, false)) people_ << "\r\x1b[K" << std::flush;
}

void Reporter::line(const std::string& text, Style style) {
  print(terminal_.there() ? wrapped(text, terminal_.columns()) : text, style);
}

void Reporter::print(const std::string& text, Style style) {
  clear_progress();
  // Bold, faint and yellow on any terminal (ECMA-48).
  static constexpr const char* kBegin[] = {"", "\x1b[1m", "\x1b[2m", "\x1b[33m"};
  const bool styled = terminal_.colour && style != Style::kPlain;
  people_ << (styled ? kBegin[static_cast<size_t>(style)] : "") << text << (styled ? "\x1b[0m" : "")
          << std::endl;
}

void Reporter::progress(double done, const std::string& text) {
  if (!terminal_.there()) return line(text);
  // A line as wide as the terminal would wrap, and could then not be redrawn.
  people_ << '\r' << with_bar(done, text, terminal_.columns() - 1) << "\x1b[K" << std::flush;
  in_progress_line_ = true;
}

shard::PrepareProgress report_preparing(Reporter& reporter, const std::string& file, double every) {
  static const SteadyClock clock;
  return agent::preparing_events(
      file, [&reporter](const json& event) { reporter.handle(event); }, clock, every);
}

}  // namespace modelet::cli
