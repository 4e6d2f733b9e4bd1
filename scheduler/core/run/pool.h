// Pool: what the scheduler knows: its nodes and its runs, and the consequences of the event being handled.
// Plain data; Core changes it, and each Run its own part.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "comm/control/control.h"
#include "scheduler/core/run/run.h"
#include "scheduler/core/values/balance.h"
#include "scheduler/ledger/records.h"
#include "scheduler/plan/planning.h"

namespace modelet::scheduler {

struct CoreOptions {
  uint64_t session = 1;  // drawn anew by each scheduler process
  // Id of the pool if no record says it; 0: runs do not outlive their nodes.
  uint64_t pool = 0;
  double heartbeat = 1;   // seconds between two heartbeats of an agent
  double dead_after = 5;  // seconds of silence after which a node counts as dead
  size_t least_cut_off =
      3;  // nodes, and more than half of all, that are silent before the scheduler may be cut off
  double stop_grace = 60;     // seconds a run may take to stop before it is aborted
  double hold_grace = 600;    // seconds without news that the files of a last snapshot may take to be safe
  double replan_after = 10;   // seconds that a node has to be slow before its run is planned anew
  uint32_t most_replans = 5;  // of a run; 0: none
  uint32_t most_recoveries = 10;  // of a run from the same step
  size_t max_nodes = 1024;
  size_t max_names = 64;        // of nodes that register with the same key
  size_t max_runs = 1000;       // kept; ended ones are forgotten, oldest first, before a new one is refused
  size_t max_run_events = 256;  // kept per run, for those who watch late
  bool has_ledger = false;      // whole logs can be read there (ReadLog)
  uint16_t data_port = 0;       // of the scheduler's DataServer; 0: it has none
  std::function<std::string()> utc = {};  // the calendar's time (base/system/clock.h); none: not known
};

struct Send {
  std::string peer;  // routing id of the connection
  comm::control::FromSchedulerMessage message;
};
struct Log {
  std::string text;
};
struct ForgetPlan {
  uint64_t number = 0;  // of a request: its answer would change nothing
};
// To be written down before anything else is done; always the first action of an event.
struct Persist {
  Records records;
};
// To be answered with RunLog: what the ledger has of a run's log after `offset`, of the run itself or of a node.
struct ReadLog {
  std::string peer;
  uint64_t run = 0;
  std::string node;
  uint64_t offset = 0;
  bool has_ended = false;   // the run
  uint64_t last_event = 0;  // of the run
};
// A PlanRequest is answered by the event Planned, some time, unless it was forgotten before its turn.
using Action = std::variant<Send, Log, PlanRequest, ForgetPlan, Persist, ReadLog>;

// An agent that is registered.
struct Node {
  std::string peer;
  comm::control::RegisterT info;
  double last_seen = 0;
  double challenged = 0;     // when another agent wanted its name; 0: none does
  double missed = 0;         // when a member of its group missed it; 0: none does
  uint64_t run = 0;          // bound to; 0: to none
  uint32_t epoch = 0;        // of that run's group
  uint64_t planned_for = 0;  // run that a plan with it is being made for; 0: none
  uint64_t stray = 0;        // run that it works for although it was told to end it; 0: none
  double bound_since = 0;
  bool confirmed = false;  // a heartbeat has named the run
  bool leaving = false;    // it wishes to leave,
  bool released = false;   // and was told that it may
  bool draining = false;   // an administrator wants it to have no work
  uint64_t step = 0;
  StepSeconds times;        // as last reported
  uint64_t last_event = 0;  // number of its last event of a run
  // Bytes of its log that it may send at once, and since when.
  double log_room = 0, log_room_at = 0;

  bool may_log(size_t bytes, double now);
  // By a member of its group, or by who wants its name, since it was heard of.
  bool is_missed() const { return std::max(missed, challenged) > last_seen; }
  bool is_willing() const { return !leaving && !draining; }
  bool is_free() const { return run == 0 && planned_for == 0 && stray == 0 && is_willing(); }
  void bind(uint64_t to, uint32_t of_epoch, double now);
  void release();
};

// The name of a node belongs to the key that first registered it, also while there is no such node: nobody
// gets by waiting what another agent was trusted with.
struct Name {
  std::string key;  // as the allow-list names it
  double used = 0;
};

struct Pool {
  explicit Pool(const CoreOptions& the_options) : options(the_options), pool_id(the_options.pool) {}

  Node* node(uint64_t id);  // null: it is gone
  Node* node_named(const std::string& name);
  bool is_there(const std::string& holder) const;  // whether it can be asked for files
  bool has_waiting_run() const;                    // for nodes
  std::vector<uint64_t> free_nodes() const;
  size_t willing_nodes() const;
  NodeCapacity capacity(uint64_t node, double speed) const;
  // That a group of so many nodes may expect; 0: unknown.
  double seconds_between_losses(size_t nodes) const;
  PoolRecord record() const;
  void send(const std::string& peer, comm::control::FromSchedulerMessage message);
  void log(std::string text);
  std::string utc() const { return options.utc ? options.utc() : ""; }

  CoreOptions options;
  uint64_t pool_id = 0;  // 0: its runs do not outlive their nodes
  double now = 0;
  double node_seconds = 0;  // that nodes have been there, all together,
  uint64_t losses = 0;      // and how often one was lost. Who leaves is not.
  uint64_t next_node = 1, next_run = 1, next_plan = 1;
  std::map<uint64_t, Node> nodes;
  std::map<std::string, Name> names;  // empty in a pool without keys
  std::set<std::string> drained;      // names of nodes that shall have no work, also of those that are away
  std::map<uint64_t, Run> runs;
  // Of the event being handled:
  std::vector<Action> actions;
  std::set<uint64_t> changed_runs;  // of which something must survive
  Records changes;                  // but for those runs
};

}  // namespace modelet::scheduler
