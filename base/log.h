// Logging: spdlog, to standard error (standard output belongs to results and JSON Lines).
#pragma once

#include <spdlog/spdlog.h>

#include <cstdint>
#include <string>

namespace modelet {

// Call once at the start of a program. `name` ("agent", "scheduler", ...) is printed with each line.
// The level comes from the environment variable MODELET_LOG (trace, debug, info, warn, error; default info).
void start_logging(const std::string& name);

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
