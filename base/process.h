// Signals and the parent process, for programs.
#pragma once

#include <functional>

namespace modelet {

// While it lives, SIGTERM and SIGINT call `stop`, which must be async-signal-safe. One at a time in a
// process.
class StopSignals {
 public:
  explicit StopSignals(std::function<void()> stop);
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();  // restores the handlers that were there
};

// This process gets SIGTERM when `parent`, the process that started it, ends. 0: does nothing. Call it first
// in main().
void exit_with_parent(int parent);

}  // namespace modelet
