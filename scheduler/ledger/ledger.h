// Ledger: the file that keeps what must outlive the scheduler's process (scheduler/ledger/records.h). It is
// an SQLite database with a write-ahead log and synchronous FULL. When write() returns, the records are on
// the disk. If the process ends or the machine stops, the file has all of a write or nothing of it.
//
// A ledger locks its file for as long as it lives, so only one process at a time can use it. Errors name the
// file and say what to do. After an error in write() the file is as it was before. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/ledger/records.h"

namespace modelet::scheduler {

class Database;

// Events kept for each run; older ones are removed when newer ones are written, except the first "started".
inline constexpr uint64_t kMostLedgerEvents = 16384;
inline constexpr uint64_t kMostRestoredEvents = 1024;               // events of a run that read() returns
inline constexpr uint64_t kMostRestoredOfEnded = 256;               // the same, for a run that has ended
inline constexpr uint64_t kMostNodeLogBytes = uint64_t{256} << 10;  // kept for each node of a run

class Ledger {
 public:
  // Opens the file, or makes it. Throws Error if another process uses it, if it is damaged, if a newer
  // release wrote it, if it is not a ledger, or if it cannot be written.
  explicit Ledger(const std::filesystem::path& file);
  ~Ledger();

  // Returns the records, without logs: runs sorted by number, the newest events sorted by run and number,
  // names in alphabetical order, and the names of drained nodes.
  Records read();
  // Reads the log of a run after number `after` (0: from the beginning): the events of the run if `node` is
  // empty, else what this node has logged. Returns about `most_bytes`, but at least one entry if there is
  // one.
  LogPage read_log(uint64_t run, const std::string& node, uint64_t after, size_t most_bytes);
  // The nodes that have logged something for the run.
  std::vector<std::string> nodes_with_log(uint64_t run);
  void write(const Records& records);

 private:
  std::unique_ptr<Database> database_;
};

}  // namespace modelet::scheduler
