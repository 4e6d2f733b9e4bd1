// Pool: what the scheduler knows, that is its nodes, its runs and the consequences of the event being
// handled. Plain data. Core changes it, and each Run changes its own part.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/system/clock.h"
#include "comm/control/control.h"
#include "scheduler/core/run/run.h"
#include "scheduler/core/values/accounts.h"
#include "scheduler/core/values/balance.h"
#include "scheduler/ledger/records.h"
#include "scheduler/plan/planning.h"

namespace modelet::scheduler {

struct CoreOptions {
  uint64_t pool = 1;      // the id of the pool if no record says it
  double heartbeat = 1;   // seconds between two heartbeats of an agent
  double dead_after = 5;  // seconds of silence after which a node counts as dead
  // The scheduler may be cut off if at least so many nodes, and more than half of all, are silent.
  size_t least_cut_off = 3;
  double stop_grace = 60;         // seconds that a run may take to stop before it is aborted
  double hold_grace = 600;        // seconds without news after which a run stops waiting for its files
  double older_after = 60;        // seconds without its newest files until a run goes on from older ones
  double replan_after = 10;       // seconds for which a node must be slow before its run is planned anew
  uint32_t most_replans = 5;      // new plans of one run because of slow nodes; 0: none
  uint32_t most_recoveries = 10;  // of one run from the same step
  double left_out = 600;          // seconds for which a run does without a node that cannot work for it
  size_t max_nodes = 1024;
  size_t max_names = 64;                                      // of nodes for each key
  size_t max_newcomers = 256, max_newcomers_of_address = 64;  // that wait to be let in
  double lost_shown = 86400;                                  // seconds for which a lost node is still shown
  size_t max_runs = 1000;       // kept; to accept a new one, the oldest that has ended is forgotten
  size_t max_run_events = 256;  // kept for each run, for clients that begin to watch later
  uint64_t max_run_event_bytes = uint64_t{1} << 20;  // the same
  // What one key may hold (scheduler/core/values/accounts.h). Without keys nobody can be told apart, so only the
  // limits on all together hold.
  Holding max_of_key{
      .runs = 256, .bytes = uint64_t{128} << 20, .addresses = 2 * comm::kMostSnapshotFiles, .watches = 256};
  uint64_t max_bytes = uint64_t{1} << 30;  // of memory for submissions and events of all runs
  size_t max_whole_logs = 32;              // of a key's ended runs; of older ones only the end is kept
  bool has_ledger = false;                 // there is a ledger, from which whole logs can be read (ReadLog)
  uint16_t data_port = 0;                  // of the scheduler's DataServer; 0: it has none
  std::function<std::chrono::system_clock::time_point()> calendar = {};  // empty: not known
};

struct Send {
  std::string peer;  // the connection
  comm::control::FromSchedulerMessage message;
};
struct Log {
  std::string text;
};
// The answer to this PlanRequest is no longer needed.
struct ForgetPlan {
  uint64_t number = 0;  // of the request
};
// To be written down before any other action is carried out. It is always the first action of an event.
struct Persist {
  Records records;
};
// To be answered with RunLog: the page of a log that the ledger has after `offset`. `node` empty: the log of
// the run itself; else what this node has logged for the run.
struct ReadLog {
  std::string peer;
  uint64_t run = 0;
  std::string node;
  uint64_t offset = 0;
  bool has_ended = false;   // whether the run has
  uint64_t last_event = 0;  // number of the last event of the run
};
// To be let in: the key is added to the allow-list as an agent's. With a secret, only if an invitation has it. Answered
// by the event LetInDone.
struct LetIn {
  std::string asker;  // the connection that waits for the answer
  std::string key, name;
  std::string secret;  // of an invitation; empty: an administrator lets it in
};
// A PlanRequest is answered later by the event Planned, unless ForgetPlan withdraws it before the planner
// begins it.
using Action = std::variant<Send, Log, PlanRequest, ForgetPlan, Persist, ReadLog, LetIn>;

// An agent that is registered.
struct Node {
  std::string peer;
  std::string address;  // of its machine, taken from the connection; empty: unknown
  std::string key;      // that registered it, as the allow-list names it; empty in a pool without keys
  comm::control::RegisterT info;
  // When its process came; 0: with the work of a group. What it held before may be gone, with another disk.
  double joined = 0;
  double last_seen = 0;
  double challenged = 0;     // when another agent asked for its name; 0: none has
  double missed = 0;         // when a member of its group reported that it misses it; 0: none has
  uint64_t run = 0;          // that it is bound to; 0: none
  uint32_t epoch = 0;        // of that run's group
  uint64_t planned_for = 0;  // run for which a plan with this node is being made; 0: none
  uint64_t stray = 0;        // run that it still works for although it was told to abort; 0: none
  double bound_since = 0;
  bool confirmed = false;  // a heartbeat has named the run
  bool leaving = false;    // it asks to leave
  std::string leaves_why;
  bool released = false;  // it may leave now
  bool draining = false;  // an administrator has drained it
  uint64_t step = 0;
  StepSeconds times;             // as last reported
  uint64_t disk_free_bytes = 0;  // as last reported; 0: not known
  std::string suspended;         // why it has fewer threads than it offered
  uint64_t sent_bytes = 0, received_bytes = 0;  // as last reported
  uint64_t last_event = 0;       // number of its last event of a run
  uint64_t last_heartbeat = 0;   // number
  // How many bytes of its log it may send at once, as of the second `log_room_at`.
  double log_room = 0, log_room_at = 0;

  bool may_log(size_t bytes, double now);
  // Whether a member of its group has missed it, or another agent has asked for its name, since it was last
  // heard of.
  bool is_missed() const { return std::max(missed, challenged) > last_seen; }
  bool is_willing() const { return !leaving && !draining; }
  bool is_free() const { return run == 0 && planned_for == 0 && stray == 0 && is_willing(); }
  void bind(uint64_t to, uint32_t of_epoch, double now);
  void release();
};

// A node that was lost, as it was then.
struct LostNode {
  comm::control::NodeStatusT status;
  double since = 0;
};

// An agent that waits to be let in: the allow-list does not have its key. What it says of itself may be wrong.
struct Newcomer {
  std::string peer, name, address;
  double since = 0, last_seen = 0;
};

// The name of a node belongs to the key that first registered it, even while no node has the name. So no
// other key can wait until an agent is away and then take its place.
struct Name {
  std::string key;  // as the allow-list names it
  double used = 0;
};

// Which nodes can be given away at this moment. Valid until a node is bound or released.
class FreeNodes {
 public:
  // `taker`: run whose own nodes do not count as coming back.
  FreeNodes(const Pool& pool, uint64_t taker);

  size_t free() const { return free_; }
  size_t present() const { return present_; }  // willing nodes
  // How many free nodes may be taken without a run that waits for `wanted` nodes having to wait longer.
  size_t left_by(size_t wanted) const;

 private:
  size_t free_, present_;
  std::vector<size_t>
      next_sum_;  // [n]: the fewest nodes, but at least n, that some set of the other groups has
};

struct Pool {
  explicit Pool(const CoreOptions& the_options) : options(the_options), pool_id(the_options.pool) {}

  Node* node(uint64_t id);  // null: it is gone
  // Adds the node, or removes it.
  std::map<uint64_t, Node>::iterator add(Node node);
  void remove(uint64_t node);
  // end(): there is none.
  std::map<uint64_t, Node>::iterator node_named(const std::string& name);
  bool is_there(const std::string& holder) const;   // whether it can be asked for files; "" is the store
  // Whether this holder is there, has been since then, and does not ask to leave.
  bool keeps(const std::string& holder, double since) const;
  Snapshots::IsThere there() const {
    return [this](const std::string& holder) { return is_there(holder); };
  }
  // Where those of `names` that hold files can be asked for them.
  std::vector<std::unique_ptr<comm::control::HolderT>> holders(const std::set<std::string>& names) const;
  std::vector<uint64_t> free_nodes() const;
  size_t willing_nodes() const;
  // How many free nodes run `taker` may take without any run that waits having to wait longer.
  size_t nodes_to_spare(uint64_t taker) const;
  // Of the logs of the key's ended runs only the newest stay whole.
  void shorten_old_logs(const std::string& key);
  // Whether there is room for `more` of this key's. If not, `why` says of what the key has, or all keys together
  // have, too much.
  bool has_room(const std::string& key, const Holding& more, std::string& why) const;
  bool is_key_full(const std::string& key, const Holding& more, std::string* why = nullptr) const;
  NodeCapacity capacity(uint64_t node, double speed) const;
  // Mean time between two losses in a group of so many nodes; 0: unknown.
  double seconds_between_losses(size_t nodes) const;
  PoolRecord record() const;
  void send(const std::string& peer, comm::control::FromSchedulerMessage message);
  void log(std::string text);
  std::string utc() const { return options.calendar ? utc_text(options.calendar()) : ""; }
  // Seconds since 1970, at least 1.
  uint64_t calendar_seconds() const;

  CoreOptions options;
  uint64_t pool_id = 0;
  bool awaits_members = false;  // members of a former scheduler's groups may still come back
  double now = 0;
  double node_seconds = 0;  // sum over all nodes of the time that they have been in the pool
  uint64_t losses = 0;      // of nodes; a node that leaves is not lost
  uint64_t next_node = 1, next_run = 1, next_plan = 1;
  std::map<uint64_t, Node> nodes;
  std::map<std::string, uint64_t> node_ids;   // by name
  std::map<std::string, Name> names;          // empty in a pool without keys
  std::map<std::string, LostNode> lost;       // by name, for a day
  // By name: nodes of a former scheduler, which may still come back.
  std::map<std::string, comm::control::NodeStatusT> awaited;
  std::map<std::string, Newcomer> newcomers;  // by public key
  std::set<std::string> drained;              // names of drained nodes, also of those that are away
  std::map<uint64_t, Run> runs;
  Accounts accounts;
  // The consequences of the event being handled:
  std::vector<Action> actions;
  std::set<uint64_t> changed_runs;  // whose records must be written anew
  Records changes;                  // other records to write
};

}  // namespace modelet::scheduler
