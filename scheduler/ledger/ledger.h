// Ledger: the file that keeps what must outlive the scheduler's process (scheduler/ledger/records.h). An SQLite
// database with a write-ahead log and synchronous FULL: when write() returns, the records are on the disk, and
// a process that ends, or a machine that stops, at any moment leaves all of a write or nothing of it.
//
// One process at a time: a ledger locks its file for as long as it lives. Errors name the file and say what to
// do; after one in write() the file is as it was before. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/ledger/records.h"

namespace modelet::scheduler {

class Database;

// Of a run; older ones are removed when newer ones are written.
inline constexpr uint64_t kMostLedgerEvents = 16384;
inline constexpr uint64_t kMostRestoredEvents = 1024;               // that read() gives,
inline constexpr uint64_t kMostRestoredOfEnded = 256;               // and of a run that has ended
inline constexpr uint64_t kMostNodeLogBytes = uint64_t{256} << 10;  // of a node in a run

class Ledger {
 public:
  // Opens the file, or makes it. Error if another process uses it, if it is damaged, of a newer release or not
  // a ledger, or if it cannot be written.
  explicit Ledger(const std::filesystem::path& file);
  ~Ledger();

  // Runs by number, their newest events by run and number, names in their order, who is drained.
  Records read();
  // What follows number `after` (0: from the beginning) in the log of a run: its events if `node` is empty, else
  // what that node has logged. About so many bytes, at least one entry if there is one.
  LogPart read_log(uint64_t run, const std::string& node, uint64_t after, size_t most_bytes);
  // Of a run: those that have logged.
  std::vector<std::string> nodes_with_log(uint64_t run);
  void write(const Records& records);

 private:
  std::unique_ptr<Database> database_;
};

}  // namespace modelet::scheduler
