// Records: what outlives the scheduler's process. Core says what has changed (the action Persist) before anything
// that follows from it is sent; the ledger writes it down (scheduler/ledger/ledger.h) and gives all of it to the
// next Core. A run is one text, which only its owner reads: scheduler/core/run/run_record.h.
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
  uint64_t id = 0;        // drawn when the ledger was new: with a run's number it names the run for ever
  uint64_t next_run = 1;  // numbers never come back
  // How long nodes have been in the pool, all together, and how often one was lost.
  uint64_t node_seconds = 0, losses = 0;
};
struct RunRecord {
  uint64_t id = 0;
  bool ended = false;
  std::string text;  // JSON
};
struct RunEventRecord {
  uint64_t run = 0;
  uint64_t number = 0;  // within the run, from 1
  std::string time;     // UTC, ISO 8601
  std::string text;     // JSON
  // Of an agent's event: the agent's incarnation and its number there. 0: the scheduler's own.
  uint64_t agent = 0, agent_number = 0;
};
// Lines that a node has logged while it worked for a run, each with its end.
struct NodeLogRecord {
  uint64_t run = 0;
  std::string node, text;
};
struct DrainRecord {  // a node that shall have no work, or may have some again
  std::string name;
  bool drained = true;
};
struct NodeNameRecord {
  std::string name, key;
};

// Changes, written together or not at all. A run or name that is there already is replaced.
struct Records {
  std::optional<PoolRecord> pool;
  std::vector<RunRecord> runs;
  std::vector<RunEventRecord> events;
  std::vector<NodeNameRecord> names;
  std::vector<DrainRecord> drains;
  std::vector<NodeLogRecord> logs;       // only written: read part by part
  std::vector<uint64_t> forgotten_runs;  // with their events and logs

  bool empty() const {
    return !pool && runs.empty() && events.empty() && names.empty() && drains.empty() && logs.empty() &&
           forgotten_runs.empty();
  }
};

// A part of a log, whole lines.
struct LogPart {
  std::string text;
  uint64_t next = 0;  // number to go on after
};

}  // namespace modelet::scheduler
