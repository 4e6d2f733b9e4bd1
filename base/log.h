// Logging: to standard error (standard output belongs to results and JSON Lines). Any thread.
//
// spdlog writes the lines, in log.cc alone: every file that called it would compile its formatting anew,
// which takes longer than most files of this project.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <string>

namespace modelet {

// Call once at the start of a program. `name` ("agent", "scheduler", ...) is printed with each line.
// The level comes from the environment variable MODELET_LOG (info, warning, error, off; default info),
// UsageError for another. Colours on a terminal, unless NO_COLOR is set (no-color.org).
void start_logging(const std::string& name);

enum class LogLevel { kInfo, kWarning, kError };
// What the three functions below call; formats only what the level lets through.
void log_formatted(LogLevel level, fmt::string_view format, fmt::format_args args);

// One line: log_info("run {} ended at step {}", run, step). The compiler checks the format, as in
// fmt::format.
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_formatted(LogLevel::kInfo, format, fmt::make_format_args(args...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_formatted(LogLevel::kWarning, format, fmt::make_format_args(args...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_formatted(LogLevel::kError, format, fmt::make_format_args(args...));
}

// Limits how often the same thing is logged: all are counted, but who causes many must not fill the disk with
// their log.
class LogLimit {
 public:
  // Counts one; true if it is to be logged: the first 20, then each power of two.
  bool next();
  uint64_t count() const { return count_; }

 private:
  uint64_t count_ = 0;
};

}  // namespace modelet
