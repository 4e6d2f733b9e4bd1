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
  std::vector<uint64_t> forgotten_runs;  // with their events
};

}  // namespace modelet::scheduler
