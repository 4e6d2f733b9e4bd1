// Logging to standard error (standard output belongs to results and JSON Lines). Any thread may log.
//
// Only log.cc calls spdlog. Each file that called it would compile its formatting again, which takes longer
// than most files of this project.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace modelet {

// Call once at the start of a program. `name` ("agent", "scheduler", ...) is printed with each line. The
// level comes from the environment variable MODELET_LOG (info, warning, error, off; default info); another
// value is a UsageError. Colours on a terminal, unless NO_COLOR is set (no-color.org). Lines have the time, unless they
// go to the journal, which has it already.
void start_logging(const std::string& name);

// kForOwner: a warning that LogTail does not keep.
enum class LogLevel { kInfo, kWarning, kError, kForOwner };
// The functions below call this one. It formats a message only if its level is logged.
void log_formatted(LogLevel level, fmt::string_view format, fmt::format_args args);

// One line: log_info("run {} ended at step {}", run, step). The compiler checks the format, as in
// fmt::format. The line is made printable (base/text/printable.h), so that no argument can forge a second
// line.
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

// A warning that only the owner of this machine may read. It goes to standard error, and never into a
// LogTail, whose lines others read.
template <class... Args>
void log_for_owner(fmt::format_string<Args...> format, Args&&... args) {
  log_formatted(LogLevel::kForOwner, format, fmt::make_format_args(args...));
}

// Keeps the lines that are logged while it lives, with time (UTC) and level, until take() removes them. Of
// more than `bytes` it keeps the newest lines. Create it after start_logging() and before other threads
// start. take() may be called from any thread.
class LogTail {
 public:
  explicit LogTail(size_t bytes);
  LogTail(const LogTail&) = delete;
  LogTail& operator=(const LogTail&) = delete;
  ~LogTail();

  // Removes the oldest lines and returns them, without line ends: as many as fit in `bytes`, but at least one
  // if there is one.
  std::vector<std::string> take(size_t bytes);

 private:
  class Sink;
  std::shared_ptr<Sink> sink_;
};

// Limits how often the same thing is logged, so that somebody who causes it many times cannot fill the disk.
// All occurrences are counted.
class LogLimit {
 public:
  // Counts one occurrence; true if it is to be logged: the first 20, then each power of two.
  bool next();
  uint64_t count() const { return count_; }

 private:
  uint64_t count_ = 0;
};

}  // namespace modelet
