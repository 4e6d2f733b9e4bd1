// Logging: to standard error (standard output belongs to results and JSON Lines). Any thread.
//
// Only log.cc uses spdlog: every file that called it would compile its formatting anew, which takes longer
// than most files of this project.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace modelet {

// Call once at the start of a program. `name` ("agent", "scheduler", ...) is printed with each line.
// The level comes from the environment variable MODELET_LOG (info, warning, error, off; default info),
// UsageError for another. Colours on a terminal, unless NO_COLOR is set (no-color.org).
void start_logging(const std::string& name);

// kForOwner: a warning that no LogTail gets.
enum class LogLevel { kInfo, kWarning, kError, kForOwner };
// The function behind the three below; formats only what the level lets through.
void log_formatted(LogLevel level, fmt::string_view format, fmt::format_args args);

// One line: log_info("run {} ended at step {}", run, step). The compiler checks the format, as in
// fmt::format. What the arguments bring along is made printable (base/text/printable.h): no text forges a
// second line.
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

// For what others must not read, although they read the rest: the owner of this machine only.
template <class... Args>
void log_for_owner(fmt::format_string<Args...> format, Args&&... args) {
  log_formatted(LogLevel::kForOwner, format, fmt::make_format_args(args...));
}

// The lines that are logged while it lives, with time (UTC) and level, until somebody takes them; of more than `bytes`
// the newest. Make it after start_logging() and before there are other threads; take() from any thread.
class LogTail {
 public:
  explicit LogTail(size_t bytes);
  LogTail(const LogTail&) = delete;
  LogTail& operator=(const LogTail&) = delete;
  ~LogTail();

  // The oldest, without their ends, at least one if there is one, and so many bytes; they are gone then.
  std::vector<std::string> take(size_t bytes);

 private:
  class Sink;
  std::shared_ptr<Sink> sink_;
};

// Limits how often the same thing is logged: all occurrences are counted, but somebody who causes many must
// not fill the disk.
class LogLimit {
 public:
  // Counts one occurrence; true if it is to be logged: the first 20, then each power of two.
  bool next();
  uint64_t count() const { return count_; }

 private:
  uint64_t count_ = 0;
};

}  // namespace modelet
