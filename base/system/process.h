// Signals and the parent process, for programs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace modelet {

// While it lives, SIGTERM, SIGINT and, unless the process was started to ignore it (nohup), SIGHUP call
// `stop`, which must be async-signal-safe. The same signal a second time ends the process as if nobody had
// handled it, unless `stop` is to hear of each. Writing to a pipe that nobody reads fails meanwhile, instead
// of ending the process. One at a time in a process.
class StopSignals {
 public:
  enum class Again { kEndsProcess, kCallsStop };
  explicit StopSignals(std::function<void()> stop, Again again = Again::kEndsProcess);
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();  // restores the handlers that were there
};

// For `stop`: a line on standard error, whatever else is being written there. Async-signal-safe.
void write_from_signal(const char* line);

// The largest resident memory of this process so far, in bytes.
uint64_t peak_memory_bytes();

// What to tell people of a std::bad_alloc that nobody who knows more has caught.
std::string out_of_memory_text();

// This process gets SIGTERM when `parent`, the process that started it, ends. 0: does nothing. Call it first
// in main().
void exit_with_parent(int parent);

// As many files, and with them connections, as the system lets this process have, but no more than 65,536.
// Call it first in main().
void raise_descriptor_limit();

// The most address space that this process may take, in bytes: beyond, it gets no more memory, and may end,
// where else it would take the machine's. Call it before there are threads. Does nothing if it has taken more
// already, as a build of a sanitizer has.
void limit_address_space(uint64_t bytes);

// The most memory of its own (data, stacks; not mapped files) that this process may take: beyond, it gets no
// more.
void limit_own_memory(uint64_t bytes);

}  // namespace modelet
