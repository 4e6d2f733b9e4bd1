#include "scheduler/cli/report.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "scheduler/placement.h"

namespace modelet::cli {
namespace {

using nlohmann::json;

// Numbers that are not finite travel as null.
std::optional<double> number(const json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || !found->is_number()) return std::nullopt;
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

std::string precision_text(const json& event) {
  std::string result;
  for (const char* k : {"1", "3", "5"})
    if (const auto value = number(event, ("p_at_" + std::string(k)).c_str()))
      result += fmt::format("  P@{} {:.4f}", k, *value);
  return result;
}

}  // namespace

Reporter::Reporter(bool json) : Reporter(json, std::cout, std::cerr, ::isatty(STDERR_FILENO) == 1) {}

Reporter::Reporter(bool json, std::ostream& machines, std::ostream& people, bool terminal)
    : json_(json), machines_(machines), people_(people), terminal_(terminal) {}

Reporter::~Reporter() {
  if (in_progress_line_) people_ << std::endl;
}

void Reporter::log_to(const std::filesystem::path& file) {
  log_path_ = file;
  log_.open(file, std::ios::app);
  if (!log_) throw Error(errno_text(file.string()) + " (opening the run's log)");
}

void Reporter::handle(const json& event) {
  const std::string json_line = event.dump(-1, ' ', false, json::error_handler_t::replace);
  if (log_.is_open() && !(log_ << json_line << std::endl))
    throw Error(errno_text(log_path_.string()) + " (writing the run's log)");
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
    progress(shown);
  } else if (kind == "epoch") {
    p_at_1_ = number(event, "p_at_1").value_or(p_at_1_);
    line(fmt::format("epoch {}/{}  step {}  loss {}{}  {} of training", count(event, "epoch"), epochs_,
                     count(event, "step"), number_text(event, "loss", "{:.4f}"), precision_text(event),
                     duration_text(number(event, "train_seconds").value_or(0))));
  } else if (kind == "checkpoint") {
    line(fmt::format("checkpoint at step {}: {}", count(event, "step"), text(event, "path")));
  } else if (kind == "finished") {
    line(fmt::format(
        "finished{}  {} steps in {} of training, {} samples/s, {} sent per node and step, peak memory {}",
        precision_text(event), count(event, "steps"),
        duration_text(number(event, "train_seconds").value_or(0)),
        number_text(event, "samples_per_second", "{:.0f}"),
        scheduler::bytes_text(count(event, "bytes_sent_per_node_per_step")),
        scheduler::bytes_text(count(event, "peak_rss_bytes"))));
    line("checkpoint: " + text(event, "checkpoint"));
  } else if (kind == "interrupted") {
    const std::string checkpoint = text(event, "checkpoint");
    line(fmt::format("interrupted at step {}{}", count(event, "step"),
                     checkpoint.empty() ? "" : "; continue with --resume " + checkpoint));
  } else if (kind == "failed") {
    line("failed: " + text(event, "error"));
  }
}

void Reporter::note(const std::string& text) { line(text); }

void Reporter::line(const std::string& text) {
  if (in_progress_line_) people_ << "\r\x1b[K";
  in_progress_line_ = false;
  people_ << text << std::endl;
}

void Reporter::progress(const std::string& text) {
  if (!terminal_) return line(text);
  people_ << '\r' << text << "\x1b[K" << std::flush;
  in_progress_line_ = true;
}

}  // namespace modelet::cli
