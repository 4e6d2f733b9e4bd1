// What a program asks of its own process: signals, its parent, limits of memory, files and disks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace modelet {

// While it lives, SIGTERM, SIGINT and SIGHUP call `stop`, which must be async-signal-safe. A SIGHUP that was
// ignored when the process started (nohup) stays ignored. The second time, the same signal ends the process
// as if it had no handler; with Again::kCallsStop it calls `stop` again. With `hung_up`, which must be
// async-signal-safe too, SIGHUP calls that, every time. Meanwhile a write to a pipe that nobody reads fails
// instead of ending the process. A process may have only one StopSignals at a time.
class StopSignals {
 public:
  enum class Again { kEndsProcess, kCallsStop };
  explicit StopSignals(std::function<void()> stop, Again again = Again::kEndsProcess,
                       std::function<void()> hung_up = {});
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();  // restores the handlers that were there
};

// For `stop`: writes a line to standard error, even if another write was interrupted. Async-signal-safe.
void write_from_signal(const char* line);

// For `stop`, while there is nothing to save: the same, and ends the process with ExitCode::kInterrupted.
[[noreturn]] void end_from_signal(const char* line);

// The largest resident memory of this process so far, in bytes.
uint64_t peak_memory_bytes();

// What a process frees stays with the C library for a time. After a large model this can be more than the model had
// (docs/studies/recovery.md). These two functions give it back to the machine. With other C libraries than GNU's they
// do nothing.
//
// From now on, pieces of a megabyte or more, such as chunks of files, go back to the machine when they are freed.
// Call it early in main().
void give_back_large_pieces();
// Gives back all that is free now.
void give_back_freed_memory();

// What to tell users about a std::bad_alloc that was not caught where more was known.
std::string out_of_memory_text();

// This process gets SIGTERM when `parent`, the process that started it, ends. Error if it has ended already.
// 0: does nothing. Call it first in main().
void exit_with_parent(int parent);

// How many files this process may have open, connections included. The first call raises its limit as far as the
// system allows, but to no more than 65,536.
uint64_t descriptor_limit();
// Throws Error, with the number and what to do, unless so many more files may be opened. `what` needs them: a program
// says so before it begins, because some libraries end the process when they get none.
void require_descriptors(uint64_t more, const std::string& what);
// Throws std::system_error, as the start of a thread does, unless so many more threads can be started now. For
// libraries that end the process when they get none.
void require_threads(size_t more);

// Throws Error unless files can be made in `folder`, or in the nearest folder above it that exists, and its disk has
// room for so many more bytes. A quota may still be smaller.
void require_room(const std::filesystem::path& folder, uint64_t bytes);

// Limits the address space of this process, in bytes. Beyond the limit, allocations fail and the process may
// end, but it cannot take the memory of the whole machine. Call it before there are other threads. Does
// nothing if the process has taken more already, as sanitizer builds have.
void limit_address_space(uint64_t bytes);

// Limits the memory of this process's own (data, stacks; not mapped files), in bytes. Beyond the limit,
// allocations fail.
void limit_own_memory(uint64_t bytes);

}  // namespace modelet
