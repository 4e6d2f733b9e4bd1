// Signals and the parent process, for programs.
#pragma once

#include <functional>

namespace modelet {

// While it lives, SIGTERM and SIGINT call `stop`, which must be async-signal-safe. One at a time in a
// process. Who sends the same signal again does not want to wait: it ends the process as if nobody had
// handled it, unless `stop` is to hear of each.
class StopSignals {
 public:
  enum class Again { kEndsProcess, kCallsStop };
  explicit StopSignals(std::function<void()> stop, Again again = Again::kEndsProcess);
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();  // restores the handlers that were there
};

// This process gets SIGTERM when `parent`, the process that started it, ends. 0: does nothing. Call it first
// in main().
void exit_with_parent(int parent);

}  // namespace modelet
