#include "scheduler/ledger/ledger.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "scheduler/ledger/database.h"

namespace modelet::scheduler {
namespace {

constexpr int kApplication = 0x4d646c74;  // marks the file as a ledger: "Mdlt"
constexpr int kTablesVersion = 5;

// Removes the events of run ?1 up to number ?2, except the first "started": it alone tells how large the model
// and the data are, and `modelet report` needs it.
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

// `bytes`: of the events of the run (`node` empty), or of what a node has logged for it (kBytesOfEntry, ledger.h).
constexpr const char* kSinceVersion4 = R"(
CREATE TABLE submissions (run INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE sizes (run INTEGER NOT NULL, node TEXT NOT NULL, bytes INTEGER NOT NULL,
                    PRIMARY KEY (run, node)) WITHOUT ROWID;
INSERT INTO sizes SELECT run, '', sum(length(CAST(text AS BLOB)) + 64) FROM events GROUP BY run;
INSERT INTO sizes SELECT run, node, sum(length(CAST(text AS BLOB)) + 64) FROM logs GROUP BY run, node;
CREATE TRIGGER event_added AFTER INSERT ON events BEGIN
  INSERT INTO sizes VALUES (new.run, '', length(CAST(new.text AS BLOB)) + 64)
    ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER event_removed AFTER DELETE ON events BEGIN
  UPDATE sizes SET bytes = bytes - length(CAST(old.text AS BLOB)) - 64 WHERE run = old.run AND node = '';
END;
CREATE TRIGGER log_added AFTER INSERT ON logs BEGIN
  INSERT INTO sizes VALUES (new.run, new.node, length(CAST(new.text AS BLOB)) + 64)
    ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER log_removed AFTER DELETE ON logs BEGIN
  UPDATE sizes SET bytes = bytes - length(CAST(old.text AS BLOB)) - 64 WHERE run = old.run AND node = old.node;
END;
)";

constexpr const char* kSinceVersion5 = R"(
CREATE TABLE nodes (name TEXT PRIMARY KEY, lost_at INTEGER NOT NULL, text TEXT NOT NULL) WITHOUT ROWID;
)";

// Makes the tables and columns that a ledger of version `from` lacks; 0: all of them.
void make_tables(Database& database, uint64_t from) {
  if (from < 1) database.run(kTables);
  if (from < 2) database.run(kSinceVersion2);
  if (from < 3) database.run(kSinceVersion3);
  if (from < 4) database.run(kSinceVersion4);
  if (from < 5) database.run(kSinceVersion5);
  database.run(fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", kApplication, kTablesVersion));
}

void check(Database& database) {
  if (database.number_of("PRAGMA application_id") != kApplication)
    throw FormatError(database.file() + ": is a database of another program: give another folder");
  const uint64_t version = database.number_of("PRAGMA user_version");
  if (version > kTablesVersion)
    throw Error(fmt::format(
        "{}: was written by a newer release (version {}, this one reads {}): use that, or another folder",
        database.file(), version, kTablesVersion));
  if (version == 0) database.damaged("version 0");
  const uint64_t bytes = database.number_of("PRAGMA page_count") * database.number_of("PRAGMA page_size");
  if (bytes <= kMostChecked)
    if (const std::string found = database.text_of("PRAGMA quick_check(1)"); found != "ok")
      database.damaged(found);
  if (version < kTablesVersion) make_tables(database, version);
}

}  // namespace

Ledger::Ledger(const std::filesystem::path& file) : database_(std::make_unique<Database>(file)) {
  // This must come before the first access to the write-ahead log, so that SQLite keeps the lock once it has
  // it.
  database_->run("PRAGMA locking_mode = EXCLUSIVE");
  if (database_->text_of("PRAGMA journal_mode = WAL") != "wal")
    throw Error(file.string() + ": its file system cannot keep a write-ahead log: give another folder");
  database_->run("PRAGMA synchronous = FULL");
  database_->run("PRAGMA recursive_triggers = ON");  // an entry that replaces another one counts once
  database_->in_transaction([&] {
    if (database_->number_of("SELECT count(*) FROM sqlite_schema") == 0)
      make_tables(*database_, 0);
    else
      check(*database_);
  });
}

Ledger::~Ledger() = default;

Records Ledger::read(uint64_t most_bytes) {
  Records records;
  Statement pool(*database_, "SELECT id, next_run, node_seconds, losses FROM pool");
  if (pool.next()) records.pool = {pool.number(0), pool.number(1), pool.number(2), pool.number(3)};
  // Those that have not ended come first, and of those that have the newest.
  Statement runs(*database_,
                 "SELECT id, ended, text, (SELECT text FROM submissions WHERE run = id) FROM runs "
                 "ORDER BY ended, id DESC");
  uint64_t bytes = 0, seen = 0;
  Records too_old;
  while (runs.next()) {
    const bool has_ended = runs.number(1) != 0;
    ++seen;
    if (has_ended && bytes > most_bytes) {
      if (seen > kMostUnreadRuns)
        too_old.forgotten_runs.push_back(runs.number(0));
      else
        ++records.unread_runs;
      continue;
    }
    records.runs.push_back({runs.number(0), has_ended, runs.text(2), runs.text(3)});
    bytes += records.runs.back().text.size() + records.runs.back().submission.size();
  }
  // Each run has its own query, so that only the end of a long log is read.
  for (const RunRecord& run : records.runs) {
    Statement events(*database_,
                     "SELECT number, time, text, agent, agent_number FROM events WHERE run = ?1 "
                     "ORDER BY number DESC LIMIT ?2");
    events.with(run.id, run.ended ? kMostRestoredOfEnded : kMostRestoredEvents);
    // The newest event is read in any case: its number is used no more.
    for (uint64_t of_run = 0; events.next();) {
      records.events.push_back(
          {run.id, events.number(0), events.text(1), events.text(2), events.number(3), events.number(4)});
      const uint64_t size = records.events.back().text.size() + kBytesOfEntry;
      bytes += size;
      of_run += size;
      if (of_run >= kMostRestoredBytes || bytes > most_bytes) break;
    }
  }
  std::ranges::sort(records.runs, {}, &RunRecord::id);
  std::ranges::sort(records.events, {},
                    [](const RunEventRecord& event) { return std::pair(event.run, event.number); });
  Statement names(*database_, "SELECT name, key FROM names ORDER BY name");
  while (names.next()) records.names.push_back({names.text(0), names.text(1)});
  Statement drained(*database_, "SELECT name FROM drained ORDER BY name");
  while (drained.next()) records.drains.push_back({drained.text(0), true});
  Statement nodes(*database_, "SELECT name, lost_at, text FROM nodes ORDER BY name");
  while (nodes.next()) records.nodes.push_back({nodes.text(0), nodes.number(1), nodes.text(2)});
  if (!too_old.empty()) write(too_old);  // nobody else would ever remove them
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
    Statement submission(*database_, "INSERT OR REPLACE INTO submissions VALUES (?, ?)");
    for (const RunRecord& record : records.runs) {
      run.run(record.id, uint64_t{record.ended}, record.text);
      if (!record.submission.empty()) submission.run(record.id, record.submission);
    }
    write_entries(records);
    Statement drain(*database_, "INSERT OR REPLACE INTO drained VALUES (?)");
    Statement undrain(*database_, "DELETE FROM drained WHERE name = ?");
    for (const DrainRecord& record : records.drains) (record.drained ? drain : undrain).run(record.name);
    Statement node(*database_, "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?)");
    Statement gone(*database_, "DELETE FROM nodes WHERE name = ?");
    for (const NodeRecord& record : records.nodes)
      record.text.empty() ? gone.run(record.name) : node.run(record.name, record.lost_at, record.text);
    Statement name(*database_, "INSERT OR REPLACE INTO names VALUES (?, ?)");
    for (const NodeNameRecord& record : records.names) name.run(record.name, record.key);
    for (const uint64_t run_id : records.forgotten_runs) {
      Statement(*database_, "DELETE FROM runs WHERE id = ?").run(run_id);
      forget(run_id, {"events", "logs", "sizes", "submissions"});
    }
  });
}

void Ledger::back_up(const std::filesystem::path& file) {
  const std::filesystem::path unfinished = file.string() + ".part";
  std::error_code failure;
  std::filesystem::remove(unfinished, failure);
  database_->copy_to(unfinished);
  std::filesystem::rename(unfinished, file, failure);
  if (failure) throw Error(file.string() + ": " + failure.message() + " (writing a copy of the ledger)");
}

// Events of runs, and what nodes have logged for them.
void Ledger::write_entries(const Records& records) {
  Statement event(*database_, "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?)");
  Statement log(*database_,
                "INSERT INTO logs SELECT ?1, ?2, 1 + ifnull(max(number), 0), ?3 FROM logs WHERE run = ?1 AND "
                "node = ?2");
  std::set<std::pair<uint64_t, std::string>> grown;
  for (const RunEventRecord& record : records.events) {
    event.run(record.run, record.number, record.time, record.text, record.agent, record.agent_number);
    if (record.number > kMostLedgerEvents)
      Statement(*database_, kRemoveOldEvents).run(record.run, record.number - kMostLedgerEvents);
    grown.insert({record.run, ""});
  }
  for (const NodeLogRecord& record : records.logs) {
    log.run(record.run, record.node, record.text);
    grown.insert({record.run, record.node});
  }
  for (const auto& [run, node] : grown) {
    Statement nodes(*database_, "SELECT count(*) FROM sizes WHERE run = ? AND node != ''");
    nodes.with(run).next();
    remove_oldest(
        run, node,
        node.empty() ? kMostEventBytes : std::min(kMostNodeLogBytes, kMostLogBytesOfRun / nodes.number(0)));
  }
  for (const uint64_t run : records.shortened_logs) {
    remove_oldest(run, "", kMostShortBytes);
    forget(run, {"logs"});
  }
}

// Removes old events of the run, or of what the node has logged for it, if they have more than `most_bytes`, and then
// an eighth more, so that it is not done for each new entry.
void Ledger::remove_oldest(uint64_t run, const std::string& node, uint64_t most_bytes) {
  Statement size(*database_, "SELECT bytes FROM sizes WHERE run = ? AND node = ?");
  if (!size.with(run, node).next() || size.number(0) <= most_bytes) return;
  const bool are_events = node.empty();
  Statement oldest(*database_, are_events
                                   ? "SELECT number, length(CAST(text AS BLOB)) FROM events WHERE run = ?1 "
                                     "AND ?2 = '' ORDER BY number"
                                   : "SELECT number, length(CAST(text AS BLOB)) FROM logs WHERE run = ?1 "
                                     "AND node = ?2 ORDER BY number");
  oldest.with(run, node);
  uint64_t bytes = size.number(0), last = 0;
  while (bytes > most_bytes / 8 * 7 && oldest.next()) {
    last = oldest.number(0);
    bytes -= std::min(bytes, oldest.number(1) + kBytesOfEntry);
  }
  if (are_events)
    Statement(*database_, kRemoveOldEvents).run(run, last);
  else
    Statement(*database_, "DELETE FROM logs WHERE run = ? AND node = ? AND number <= ?").run(run, node, last);
}

// Removes what the tables have of the run.
void Ledger::forget(uint64_t run, const std::vector<std::string>& tables) {
  for (const std::string& table : tables)
    Statement(*database_, fmt::format("DELETE FROM {} WHERE run = ?", table).c_str()).run(run);
}

}  // namespace modelet::scheduler
