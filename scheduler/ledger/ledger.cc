#include "scheduler/ledger/ledger.h"

#include <spdlog/fmt/fmt.h>

#include "base/error.h"
#include "scheduler/ledger/database.h"

namespace modelet::scheduler {
namespace {

constexpr int kApplication = 0x4d646c74;  // marks the file as a ledger: "Mdlt"
constexpr int kVersion = 1;               // of the tables

constexpr const char* kTables = R"(
CREATE TABLE pool (one INTEGER PRIMARY KEY CHECK (one = 1), id INTEGER NOT NULL, next_run INTEGER NOT NULL);
CREATE TABLE runs (id INTEGER PRIMARY KEY, ended INTEGER NOT NULL, text TEXT NOT NULL);
CREATE TABLE events (run INTEGER NOT NULL, number INTEGER NOT NULL, time TEXT NOT NULL, text TEXT NOT NULL,
                     PRIMARY KEY (run, number)) WITHOUT ROWID;
CREATE TABLE names (name TEXT PRIMARY KEY, key TEXT NOT NULL) WITHOUT ROWID;
)";

void make_tables(Database& database) {
  database.run(kTables);
  database.run(fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", kApplication, kVersion));
}

void check(Database& database) {
  if (database.number_of("PRAGMA application_id") != kApplication)
    throw FormatError(database.file() + ": is a database of another program: give another folder");
  const uint64_t version = database.number_of("PRAGMA user_version");
  if (version > kVersion)
    throw Error(fmt::format(
        "{}: was written by a newer release (version {}, this one reads {}): use that, or another folder",
        database.file(), version, kVersion));
  if (version != kVersion) database.damaged(fmt::format("version {}", version));
  if (const std::string found = database.text_of("PRAGMA quick_check(1)"); found != "ok")
    database.damaged(found);
}

}  // namespace

Ledger::Ledger(const std::filesystem::path& file) : database_(std::make_unique<Database>(file)) {
  // Before the write-ahead log is touched: SQLite then keeps the lock, once it has it.
  database_->run("PRAGMA locking_mode = EXCLUSIVE");
  if (database_->text_of("PRAGMA journal_mode = WAL") != "wal")
    throw Error(file.string() + ": its file system cannot keep a write-ahead log: give another folder");
  database_->run("PRAGMA synchronous = FULL");
  database_->in_transaction([&] {
    if (database_->number_of("SELECT count(*) FROM sqlite_schema") == 0)
      make_tables(*database_);
    else
      check(*database_);
  });
}

Ledger::~Ledger() = default;

Records Ledger::read() {
  Records records;
  Statement pool(*database_, "SELECT id, next_run FROM pool");
  if (pool.next()) records.pool = {pool.number(0), pool.number(1)};
  Statement runs(*database_, "SELECT id, ended, text FROM runs ORDER BY id");
  while (runs.next()) records.runs.push_back({runs.number(0), runs.number(1) != 0, runs.text(2)});
  Statement events(*database_, "SELECT run, number, time, text FROM events ORDER BY run, number");
  while (events.next())
    records.events.push_back({events.number(0), events.number(1), events.text(2), events.text(3)});
  Statement names(*database_, "SELECT name, key FROM names ORDER BY name");
  while (names.next()) records.names.push_back({names.text(0), names.text(1)});
  return records;
}

void Ledger::write(const Records& records) {
  database_->in_transaction([&] {
    if (records.pool)
      Statement(*database_, "INSERT OR REPLACE INTO pool VALUES (1, ?, ?)")
          .run(records.pool->id, records.pool->next_run);
    Statement run(*database_, "INSERT OR REPLACE INTO runs VALUES (?, ?, ?)");
    for (const RunRecord& record : records.runs) run.run(record.id, uint64_t{record.ended}, record.text);
    Statement event(*database_, "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?)");
    Statement too_old(
        *database_,
        "DELETE FROM events WHERE run = ?1 AND number <= (SELECT number FROM events WHERE run = ?1 "
        "ORDER BY number DESC LIMIT 1 OFFSET ?2)");
    for (const RunEventRecord& record : records.events) {
      event.run(record.run, record.number, record.time, record.text);
      too_old.run(record.run, kMostLedgerEvents);
    }
    Statement name(*database_, "INSERT OR REPLACE INTO names VALUES (?, ?)");
    for (const NodeNameRecord& record : records.names) name.run(record.name, record.key);
    Statement forgotten(*database_, "DELETE FROM runs WHERE id = ?");
    Statement its_events(*database_, "DELETE FROM events WHERE run = ?");
    for (const uint64_t id : records.forgotten_runs) {
      forgotten.run(id);
      its_events.run(id);
    }
  });
}

}  // namespace modelet::scheduler
