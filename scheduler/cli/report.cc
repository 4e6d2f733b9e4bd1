#include "scheduler/cli/report.h"

#include <spdlog/fmt/fmt.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "scheduler/placement.h"

namespace modelet::cli {
namespace {

using nlohmann::json;

constexpr char kLogName[] = "log.jsonl";

// Nothing for a number that is not finite, which travels as null.
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

std::string text(const json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
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

// Columns of the terminal that standard error is; asked anew for each line, because windows are resized.
size_t terminal_columns() {
  constexpr size_t kUsual = 80;
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

// "  P@1 0.6614  P@3 ...": those of the figures that the event has.
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

}  // namespace

std::string figure_title(const std::string& name) {
  static const std::pair<const char*, const char*> titles[] = {
      {"p", "P"}, {"ndcg", "nDCG"}, {"psp", "PSP"}, {"auc", "AUC"}, {"log_loss", "log-loss"}};
  const size_t at = name.find("_at_");
  std::string title = name.substr(0, at);
  for (const auto& [word, shown] : titles)
    if (title == word) title = shown;
  return at == std::string::npos ? title : title + "@" + name.substr(at + 4);
}

std::string with_bar(double done, const std::string& text, size_t columns) {
  constexpr size_t kShortest = 10, kLongest = 40, kFrame = 3;  // brackets and a space
  constexpr const char* kBetweenFields = "  ";
  if (text.size() > columns) {
    // The last place where two fields can be parted so that what is before it fits.
    const size_t end = text.rfind(kBetweenFields, columns);
    return text.substr(0, end == std::string::npos ? columns : end);
  }
  if (text.size() + kFrame + kShortest > columns) return text;
  const size_t width = std::min(columns - text.size() - kFrame, kLongest);
  const auto filled = static_cast<size_t>(std::clamp(done, 0.0, 1.0) * static_cast<double>(width));
  return fmt::format("[{}{}] {}", std::string(filled, '#'), std::string(width - filled, '.'), text);
}

Reporter::Reporter(bool json) : Reporter(json, std::cout, std::cerr, ::isatty(STDERR_FILENO) == 1) {}

Reporter::Reporter(bool json, std::ostream& machines, std::ostream& people, bool terminal)
    : json_(json), machines_(machines), people_(people), terminal_(terminal) {}

Reporter::~Reporter() {
  if (in_progress_line_) people_ << std::endl;
}

void Reporter::record_in(const std::filesystem::path& folder, const std::string& experiment) {
  folder_ = folder;
  experiment_ = experiment;
}

void Reporter::begin_record() {
  std::error_code failure;
  std::filesystem::create_directories(folder_, failure);
  if (failure) throw Error(folder_.string() + ": " + failure.message() + " (making the run's folder)");
  AtomicFile file(folder_ / "experiment.toml");
  file.write(experiment_);
  file.commit();
  const std::filesystem::path log = folder_ / kLogName;
  log_.open(log, std::ios::app);
  if (!log_) throw Error(errno_text(log.string()) + " (opening the run's log)");
}

void Reporter::handle(const json& event) {
  const std::string json_line = event.dump(-1, ' ', false, json::error_handler_t::replace);
  if (!folder_.empty() && !log_.is_open() && event.is_object() && text(event, "event") == "started")
    begin_record();
  if (event.is_object() && text(event, "event") == "checkpoint") checkpoint_ = text(event, "path");
  if (log_.is_open() && !(log_ << json_line << std::endl))
    throw Error(errno_text((folder_ / kLogName).string()) + " (writing the run's log)");
  if (json_)
    machines_ << json_line << std::endl;
  else if (event.is_object())
    show(event);
}

void Reporter::show(const json& event) {
  const std::string kind = text(event, "event");
  if (kind == "started") {
    steps_ = count(event, "steps");
    epochs_ = count(event, "epochs");
    line(fmt::format(
        "{}: {} parameters, {} features, {} labels, {} training rows; {} node(s), {} thread(s) each",
        text(event, "run"), count(event, "parameters"), count(event, "features"), count(event, "labels"),
        count(event, "train_rows"), count(event, "nodes"), count(event, "threads")));
  } else if (kind == "progress") {
    const uint64_t step = count(event, "step");
    std::string shown = fmt::format("epoch {}/{}  step {}/{}", count(event, "epoch"), epochs_, step, steps_);
    if (steps_ > 0) shown += fmt::format("  {}%", 100 * step / steps_);
    shown += fmt::format(
        "  {} samples/s  ETA {}  loss {}", number_text(event, "samples_per_second", "{:.0f}"),
        duration_text(number(event, "eta_seconds").value_or(0)), number_text(event, "loss", "{:.4f}"));
    if (p_at_1_ >= 0) shown += fmt::format("  P@1 {:.4f}", p_at_1_);
    if (const uint64_t bytes = count(event, "bytes_sent_per_node_per_step"); bytes > 0)
      shown += fmt::format("  {}/step", scheduler::bytes_text(bytes));
    shown += slowest_text(event);
    progress(steps_ > 0 ? static_cast<double>(step) / static_cast<double>(steps_) : 0, shown);
  } else if (kind == "epoch") {
    for (const json& judged : {event, event.value("validation", json::object())})
      p_at_1_ = number(judged, "p_at_1").value_or(p_at_1_);
    line(fmt::format("epoch {}/{}  step {}  loss {}{}  {} of training", count(event, "epoch"), epochs_,
                     count(event, "step"), number_text(event, "loss", "{:.4f}"), main_figures_text(event),
                     duration_text(number(event, "train_seconds").value_or(0))));
  } else if (kind == "fetching" || kind == "sending") {
    const uint64_t bytes = count(event, "bytes"), total = count(event, "total_bytes");
    const std::string who = kind == "sending" ? "sends" : text(event, "node") + " fetches";
    progress(total > 0 ? static_cast<double>(bytes) / static_cast<double>(total) : 1,
             fmt::format(
                 "{} {} data  {} of {}  {}/s  ETA {}", who, text(event, "data"), scheduler::bytes_text(bytes),
                 scheduler::bytes_text(total),
                 scheduler::bytes_text(static_cast<uint64_t>(number(event, "bytes_per_second").value_or(0))),
                 duration_text(number(event, "eta_seconds").value_or(0))));
  } else if (kind == "checkpoint") {
    line(fmt::format("checkpoint at step {}: {}", count(event, "step"), text(event, "path")));
  } else if (kind == "replanned") {
    line(fmt::format("re-planned at step {}: {} is {} times slower than planned; moved {} modelets",
                     count(event, "step"), text(event, "node"), number_text(event, "slower", "{:.2f}"),
                     count(event, "moved_modelets")));
  } else if (kind == "finished") {
    if (const uint64_t best = count(event, "best_step"); best > 0)
      line(fmt::format("best by validation: step {}; its weights are tested", best));
    line(fmt::format(
        "finished{}  {} steps in {} of training, {} samples/s, {} sent per node and step, peak memory {}",
        main_figures_text(event), count(event, "steps"),
        duration_text(number(event, "train_seconds").value_or(0)),
        number_text(event, "samples_per_second", "{:.0f}"),
        scheduler::bytes_text(count(event, "bytes_sent_per_node_per_step")),
        scheduler::bytes_text(count(event, "peak_rss_bytes"))));
    for (const auto& names : {std::initializer_list<const char*>{"ndcg_at_1", "ndcg_at_3", "ndcg_at_5"},
                              {"psp_at_1", "psp_at_3", "psp_at_5"},
                              {"recall_at_1", "recall_at_3", "recall_at_5"}})
      if (const std::string shown = figures_text(event, names); !shown.empty()) line(shown);
    line("checkpoint: " + text(event, "checkpoint"));
  } else if (kind == "interrupted") {
    const std::string checkpoint = text(event, "checkpoint");
    line(fmt::format("interrupted at step {}{}", count(event, "step"),
                     checkpoint.empty() ? "" : "; continue with --resume " + checkpoint));
  }
}

void Reporter::note(const std::string& text) { line(text); }

std::string Reporter::how_to_resume() const {
  return checkpoint_.empty() ? "" : "; continue with --resume " + checkpoint_;
}

void Reporter::line(const std::string& text) {
  if (in_progress_line_) people_ << "\r\x1b[K";
  in_progress_line_ = false;
  people_ << text << std::endl;
}

void Reporter::progress(double done, const std::string& text) {
  if (!terminal_) return line(text);
  // A line as wide as the terminal would wrap, and could not be redrawn.
  people_ << '\r' << with_bar(done, text, terminal_columns() - 1) << "\x1b[K" << std::flush;
  in_progress_line_ = true;
}

}  // namespace modelet::cli
