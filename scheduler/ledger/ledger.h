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

#include "scheduler/ledger/records.h"

namespace modelet::scheduler {

class Database;

// Of a run; older ones are removed when newer ones are written.
inline constexpr uint64_t kMostLedgerEvents = 1024;

class Ledger {
 public:
  // Opens the file, or makes it. Error if another process uses it, if it is damaged, of a newer release or not
  // a ledger, or if it cannot be written.
  explicit Ledger(const std::filesystem::path& file);
  ~Ledger();

  // All of it: runs by number, events by run and number, names in their order.
  Records read();
  void write(const Records& records);

 private:
  std::unique_ptr<Database> database_;
};

}  // namespace modelet::scheduler
