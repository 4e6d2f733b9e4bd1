// Records: what outlives the scheduler's process. Core says what has changed (the action Persist) before
// anything that follows from it is sent. The ledger writes the changes down (scheduler/ledger/ledger.h) and
// gives all records to the Core of the next process. A run is recorded as a text that only
// scheduler/core/run/run_record.cc reads.
//
// Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace modelet::scheduler {

struct PoolRecord {
  uint64_t id = 0;        // drawn when the ledger was made; id and run number identify a run for ever
  uint64_t next_run = 1;  // run numbers are never used again
  // The time that nodes have been in the pool, summed over the nodes, and how often one was lost.
  uint64_t node_seconds = 0, losses = 0;
};
struct RunRecord {
  uint64_t id = 0;
  bool ended = false;
  std::string text;  // JSON
  // What was submitted, also JSON. It is long and never changes, so it is written once; empty: it was written
  // before.
  std::string submission = {};
};
struct RunEventRecord {
  uint64_t run = 0;
  uint64_t number = 0;  // within the run, from 1
  std::string time;     // UTC, ISO 8601
  std::string text;     // JSON
  // For an event of an agent: the agent's incarnation, and the number that the agent gave the event. 0: the
  // event is the scheduler's own.
  uint64_t agent = 0, agent_number = 0;
};
// Lines that a node has logged while it worked for a run, each with its line end.
struct NodeLogRecord {
  uint64_t run = 0;
  std::string node, text;
};
// A node that was drained, or that may work again.
struct DrainRecord {
  std::string name;
  bool drained = true;
};
struct NodeNameRecord {
  std::string name, key;
};
// A node that is there, or that was lost. An empty text: it is neither.
struct NodeRecord {
  std::string name;
  uint64_t lost_at = 0;   // seconds since 1970; 0: it is there
  std::string text = {};  // JSON: what it offers, and why it was lost
};

// Changes that are written together or not at all. A run or name that the ledger has already is replaced.
struct Records {
  std::optional<PoolRecord> pool;
  std::vector<RunRecord> runs;
  std::vector<RunEventRecord> events;
  std::vector<NodeNameRecord> names;
  std::vector<DrainRecord> drains;
  std::vector<NodeRecord> nodes;
  std::vector<NodeLogRecord> logs;  // only written; Ledger::read_log() reads them
  std::vector<uint64_t>
      shortened_logs;  // runs of whose events only the last stay, and of what nodes logged nothing
  std::vector<uint64_t> forgotten_runs;  // removed with their events and logs
  // Runs that have ended and are in the ledger, but were not read because they are too many bytes.
  uint64_t unread_runs = 0;

  bool empty() const {
    return !pool && runs.empty() && events.empty() && names.empty() && drains.empty() && nodes.empty() &&
           logs.empty() && shortened_logs.empty() && forgotten_runs.empty();
  }
};

// A page of a log, whole lines.
struct LogPage {
  std::string text;
  uint64_t next = 0;  // pass this as `after` to read on
};

}  // namespace modelet::scheduler
