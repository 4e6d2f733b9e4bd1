// Pool: what the scheduler knows: its nodes and its runs, and the consequences of the event being handled.
// Plain data; Core changes it, and each Run its own part.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "comm/control/control.h"
#include "scheduler/core/balance.h"
#include "scheduler/core/run.h"
#include "scheduler/ledger/records.h"
#include "scheduler/plan/planning.h"

namespace modelet::scheduler {

struct CoreOptions {
  uint64_t session = 1;       // drawn anew by each scheduler process
  double heartbeat = 1;       // seconds between two heartbeats of an agent
  double dead_after = 5;      // seconds of silence after which a node counts as dead
  double stop_grace = 60;     // seconds a run may take to stop before it is aborted
  double replan_after = 10;   // seconds that a node has to be slow before its run is planned anew
  uint32_t most_replans = 5;  // of a run; 0: none
  size_t max_nodes = 1024;
  size_t max_names = 64;        // of nodes that register with the same key
  size_t max_runs = 1000;       // kept; ended ones are forgotten, oldest first, before a new one is refused
  size_t max_run_events = 256;  // kept per run, for those who watch late
  uint16_t data_port = 0;       // of the scheduler's DataServer; 0: it has none
};

struct Send {
  std::string peer;  // routing id of the connection
  comm::control::FromSchedulerMessage message;
};
struct Log {
  std::string text;
};
struct Persist {  // before anything that follows it is sent
  Records records;
};
struct ForgetPlan {
  uint64_t number = 0;  // of a request: its answer would change nothing
};
// A PlanRequest is answered by the event Planned, some time, unless it was forgotten before its turn.
using Action = std::variant<Send, Log, PlanRequest, ForgetPlan, Persist>;

// An agent that is registered.
struct Node {
  std::string peer;
  comm::control::RegisterT info;
  double last_seen = 0;
  double challenged = 0;     // when another agent wanted its name; 0: none does
  uint64_t run = 0;          // bound to; 0: to none
  uint64_t planned_for = 0;  // run that a plan with it is being made for; 0: none
  double bound_since = 0;
  bool confirmed = false;  // a heartbeat has named the run
  uint64_t step = 0;
  StepSeconds times;  // as last reported

  bool is_free() const { return run == 0 && planned_for == 0; }
  void bind(uint64_t to, double now);
  void release();
};

// The name of a node belongs to the key that first registered it, also while there is no such node: nobody
// gets by waiting what another agent was trusted with.
struct Name {
  std::string key;  // as the allow-list names it
  double used = 0;
};

struct Pool {
  explicit Pool(const CoreOptions& the_options) : options(the_options) {}

  Node* node(uint64_t id);  // null: it is gone
  bool has_waiting_run() const;
  NodeCapacity capacity(uint64_t node, double speed) const;
  void send(const std::string& peer, comm::control::FromSchedulerMessage message);
  void log(std::string text);

  CoreOptions options;
  double now = 0;
  uint64_t next_node = 1, next_run = 1, next_plan = 1;
  std::map<uint64_t, Node> nodes;
  std::map<std::string, Name> names;  // empty in a pool without keys
  std::map<uint64_t, Run> runs;
  std::vector<Action> actions;  // of the event being handled
};

}  // namespace modelet::scheduler
