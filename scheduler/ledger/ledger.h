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

#include "base/error.h"
#include "scheduler/ledger/records.h"

namespace modelet::scheduler {

class Database;

// Events kept for each run, and their bytes; older ones are removed when newer ones are written, except the first
// "started".
inline constexpr uint64_t kMostLedgerEvents = 16384, kMostEventBytes = uint64_t{16} << 20;
inline constexpr uint64_t kMostRestoredEvents = 1024;              // events of a run that read() returns
inline constexpr uint64_t kMostRestoredOfEnded = 256;              // the same, for a run that has ended
inline constexpr uint64_t kMostRestoredBytes = uint64_t{1} << 20;  // of these events
inline constexpr uint64_t kMostShortBytes = uint64_t{256}
                                            << 10;  // of events that Records::shortened_logs leaves
inline constexpr uint64_t kMostNodeLogBytes = uint64_t{256} << 10;  // kept for each node of a run
inline constexpr uint64_t kMostLogBytesOfRun = uint64_t{16} << 20;  // for all nodes of a run together
inline constexpr uint64_t kMostUnreadRuns = 1000;  // the newest so many are kept even if they are not read
// Each entry counts as so many bytes more than its text has.
inline constexpr uint64_t kBytesOfEntry = 64;

// Another process uses the ledger.
class InUse : public Error {
 public:
  using Error::Error;
};

class Ledger {
 public:
  static constexpr uint64_t kMostReadBytes = uint64_t{1} << 30;

  // Opens the file, or makes it. Throws InUse if another process uses it, and Error if it is damaged, if a newer
  // release wrote it, if it is not a ledger, or if it cannot be written.
  explicit Ledger(const std::filesystem::path& file);
  ~Ledger();

  // Returns the records, without logs: runs sorted by number, the newest events sorted by run and number,
  // names in alphabetical order, the names of drained nodes, and nodes that are there or were lost. A ledger of any size can be read: if the runs
  // have more than `most_bytes`, the oldest of those that have ended are left out (Records::unread_runs), and so
  // are events, those of the oldest runs that have ended first. Runs that are left out are removed if they
  // are not among the newest kMostUnreadRuns.
  Records read(uint64_t most_bytes = kMostReadBytes);
  // Reads the log of a run after number `after` (0: from the beginning): the events of the run if `node` is
  // empty, else what this node has logged. Returns about `most_bytes`, but at least one entry if there is
  // one.
  LogPage read_log(uint64_t run, const std::string& node, uint64_t after, size_t most_bytes);
  // The nodes that have logged something for the run.
  std::vector<std::string> nodes_with_log(uint64_t run);
  void write(const Records& records);
  // Writes a copy, as it is now, to another file, which is complete when it has its name.
  void back_up(const std::filesystem::path& file);

 private:
  void write_entries(const Records& records);
  void remove_oldest(uint64_t run, const std::string& node, uint64_t most_bytes);
  void forget(uint64_t run, const std::vector<std::string>& tables);

  std::unique_ptr<Database> database_;
};

}  // namespace modelet::scheduler
