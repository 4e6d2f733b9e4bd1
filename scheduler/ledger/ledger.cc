#include "scheduler/ledger/ledger.h"

#include <spdlog/fmt/fmt.h>

#include "base/error.h"
#include "scheduler/ledger/database.h"

namespace modelet::scheduler {
namespace {

constexpr int kApplication = 0x4d646c74;  // marks the file as a ledger: "Mdlt"
constexpr int kVersion = 3;               // of the tables

// Removes the events of run ?1 up to number ?2, except the first "started": it alone tells how large the model
// and the data are, and experiments/report.py needs it.
constexpr const char* kRemoveOldEvents = R"(
DELETE FROM events WHERE run = ?1 AND number <= ?2 AND number IS NOT
    (SELECT number FROM events WHERE run = ?1 AND number <= ?2 AND instr(text, '"event":"started"')
     ORDER BY number LIMIT 1)
)";

// Ledgers up to this size are checked as a whole. That takes a second for some hundred MiB, and longer if the
// disk is busy. Of a larger ledger only what is read is checked.
constexpr uint64_t kMostChecked = uint64_t{16} << 20;

constexpr const char* kTables = R"(
CREATE TABLE pool (one INTEGER PRIMARY KEY CHECK (one = 1), id INTEGER NOT NULL, next_run INTEGER NOT NULL);
CREATE TABLE runs (id INTEGER PRIMARY KEY, ended INTEGER NOT NULL, text TEXT NOT NULL);
CREATE TABLE events (run INTEGER NOT NULL, number INTEGER NOT NULL, time TEXT NOT NULL, text TEXT NOT NULL,
                     PRIMARY KEY (run, number)) WITHOUT ROWID;
CREATE TABLE names (name TEXT PRIMARY KEY, key TEXT NOT NULL) WITHOUT ROWID;
)";
constexpr const char* kSinceVersion2 = R"(
ALTER TABLE events ADD COLUMN agent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN agent_number INTEGER NOT NULL DEFAULT 0;
CREATE TABLE logs (run INTEGER NOT NULL, node TEXT NOT NULL, number INTEGER NOT NULL, text TEXT NOT NULL,
                   PRIMARY KEY (run, node, number)) WITHOUT ROWID;
CREATE TABLE drained (name TEXT PRIMARY KEY) WITHOUT ROWID;
)";
constexpr const char* kSinceVersion3 = R"(
ALTER TABLE pool ADD COLUMN node_seconds INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pool ADD COLUMN losses INTEGER NOT NULL DEFAULT 0;
)";

// Makes the tables and columns that a ledger of version `from` lacks; 0: all of them.
void make_tables(Database& database, uint64_t from) {
  if (from < 1) database.run(kTables);
  if (from < 2) database.run(kSinceVersion2);
  if (from < 3) database.run(kSinceVersion3);
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
  if (version == 0) database.damaged("version 0");
  const uint64_t bytes = database.number_of("PRAGMA page_count") * database.number_of("PRAGMA page_size");
  if (bytes <= kMostChecked)
    if (const std::string found = database.text_of("PRAGMA quick_check(1)"); found != "ok")
      database.damaged(found);
  if (version < kVersion) make_tables(database, version);
}

}  // namespace

Ledger::Ledger(const std::filesystem::path& file) : database_(std::make_unique<Database>(file)) {
  // This must come before the first access to the write-ahead log, so that SQLite keeps the lock once it has
  // it.
  database_->run("PRAGMA locking_mode = EXCLUSIVE");
  if (database_->text_of("PRAGMA journal_mode = WAL") != "wal")
    throw Error(file.string() + ": its file system cannot keep a write-ahead log: give another folder");
  database_->run("PRAGMA synchronous = FULL");
  database_->in_transaction([&] {
    if (database_->number_of("SELECT count(*) FROM sqlite_schema") == 0)
      make_tables(*database_, 0);
    else
      check(*database_);
  });
}

Ledger::~Ledger() = default;

Records Ledger::read() {
  Records records;
  Statement pool(*database_, "SELECT id, next_run, node_seconds, losses FROM pool");
  if (pool.next()) records.pool = {pool.number(0), pool.number(1), pool.number(2), pool.number(3)};
  Statement runs(*database_, "SELECT id, ended, text FROM runs ORDER BY id");
  while (runs.next()) records.runs.push_back({runs.number(0), runs.number(1) != 0, runs.text(2)});
  // Each run has its own query, so that only the end of a long log is read.
  for (const RunRecord& run : records.runs) {
    Statement events(*database_,
                     "SELECT number, time, text, agent, agent_number FROM events WHERE run = ?1 AND number > "
                     "(SELECT max(number) FROM events WHERE run = ?1) - ?2 ORDER BY number");
    events.with(run.id, run.ended ? kMostRestoredOfEnded : kMostRestoredEvents);
    while (events.next())
      records.events.push_back(
          {run.id, events.number(0), events.text(1), events.text(2), events.number(3), events.number(4)});
  }
  Statement names(*database_, "SELECT name, key FROM names ORDER BY name");
  while (names.next()) records.names.push_back({names.text(0), names.text(1)});
  Statement drained(*database_, "SELECT name FROM drained ORDER BY name");
  while (drained.next()) records.drains.push_back({drained.text(0), true});
  return records;
}

LogPage Ledger::read_log(uint64_t run, const std::string& node, uint64_t after, size_t most_bytes) {
  LogPage page{.text = {}, .next = after};
  const auto read = [&](Statement& statement, const char* line_end) {
    while (statement.next()) {
      const std::string text = statement.text(1);
      if (!page.text.empty() && page.text.size() + text.size() > most_bytes) return;
      page.text += text + line_end;
      page.next = statement.number(0);
    }
  };
  if (node.empty()) {
    Statement events(*database_,
                     "SELECT number, text FROM events WHERE run = ? AND number > ? ORDER BY number");
    read(events.with(run, after), "\n");
  } else {
    Statement logs(*database_,
                   "SELECT number, text FROM logs WHERE run = ? AND node = ? AND number > ? ORDER BY number");
    read(logs.with(run, node, after), "");
  }
  return page;
}

std::vector<std::string> Ledger::nodes_with_log(uint64_t run) {
  std::vector<std::string> nodes;
  Statement logs(*database_, "SELECT DISTINCT node FROM logs WHERE run = ? ORDER BY node");
  logs.with(run);
  while (logs.next()) nodes.push_back(logs.text(0));
  return nodes;
}

void Ledger::write(const Records& records) {
  database_->in_transaction([&] {
    if (records.pool)
      Statement(*database_, "INSERT OR REPLACE INTO pool VALUES (1, ?, ?, ?, ?)")
          .run(records.pool->id, records.pool->next_run, records.pool->node_seconds, records.pool->losses);
    Statement run(*database_, "INSERT OR REPLACE INTO runs VALUES (?, ?, ?)");
    for (const RunRecord& record : records.runs) run.run(record.id, uint64_t{record.ended}, record.text);
    Statement event(*database_, "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?)");
    Statement too_old(*database_, kRemoveOldEvents);
    for (const RunEventRecord& record : records.events) {
      event.run(record.run, record.number, record.time, record.text, record.agent, record.agent_number);
      if (record.number > kMostLedgerEvents) too_old.run(record.run, record.number - kMostLedgerEvents);
    }
    Statement log(
        *database_,
        "INSERT INTO logs SELECT ?1, ?2, 1 + ifnull(max(number), 0), ?3 FROM logs WHERE run = ?1 AND "
        "node = ?2");
    Statement log_too_old(*database_,
                          "DELETE FROM logs WHERE run = ?1 AND node = ?2 AND number IN (SELECT number FROM "
                          "(SELECT number, sum(length(text)) OVER (ORDER BY number DESC) AS bytes FROM logs "
                          "WHERE run = ?1 AND node = ?2) WHERE bytes > ?3)");
    for (const NodeLogRecord& record : records.logs) {
      log.run(record.run, record.node, record.text);
      log_too_old.run(record.run, record.node, kMostNodeLogBytes);
    }
    Statement drain(*database_, "INSERT OR REPLACE INTO drained VALUES (?)");
    Statement undrain(*database_, "DELETE FROM drained WHERE name = ?");
    for (const DrainRecord& record : records.drains) (record.drained ? drain : undrain).run(record.name);
    Statement name(*database_, "INSERT OR REPLACE INTO names VALUES (?, ?)");
    for (const NodeNameRecord& record : records.names) name.run(record.name, record.key);
    Statement forgotten(*database_, "DELETE FROM runs WHERE id = ?");
    Statement its_events(*database_, "DELETE FROM events WHERE run = ?");
    Statement its_logs(*database_, "DELETE FROM logs WHERE run = ?");
    for (const uint64_t id : records.forgotten_runs) {
      forgotten.run(id);
      its_events.run(id);
      its_logs.run(id);
    }
  });
}

}  // namespace modelet::scheduler
