// The scheduler's mind: a pure state machine. Messages of agents and clients and the passing of time go in,
// messages to send and lines to log come out. It does no I/O and asks no clock, so a test drives it event by
// event.
//
// A run:   queued -> preparing -> running -> finished | failed | stopped
//              ^         |           `-> stopping -^
//              `-- re-planned
//   queued     waits for nodes; first come, first served
//   preparing  its nodes load data and bind their sockets
//   running    all are prepared and know each other's endpoints
//   stopping   asked to end with a checkpoint; told to abort if it has not after `stop_grace`
// When a node of a run dies, leaves or fails, the run fails and its other nodes are told to abort.
//
// A run is planned anew when one of its nodes stays notably slower than the others, or than planned if it is
// alone (scheduler/balance.h): its nodes are asked to stop, which writes a checkpoint, and get the modelets
// that a plan with their measured speeds gives them, to go on from there. Nodes that the run was given, but a
// former plan had no use for, count again if they are free. Until all have stopped the run is running, and
// keeps all its nodes.
//
// A node is bound to a run from Prepare until it reports RunDone (or a heartbeat without the run): a node
// that was told to abort but still unwinds gets no other run.
//
// Invariants (tests/scheduler/core_storm_test.cc):
//   1. a node is bound to at most one run, and only runs that are preparing, running or stopping wait for a
//   node;
//   2. a run that ended never changes again;
//   3. every run that was started ends once its nodes end or die;
//   4. the membership epoch of a run grows with each start of its group;
//   5. in a pool with keys, what an agent may send only an agent's key brings about, and what a user may send
//   only a user's; a node's name stays with the key that registered it as long as the node is there.
// In pieces: core.cc has what goes in, what comes out and the passing of time; core_agents.cc and
// core_clients.cc what each of those say; core_runs.cc the life of a run. All share the state below. One
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/experiment.h"
#include "base/log.h"
#include "comm/control.h"
#include "scheduler/balance.h"
#include "scheduler/placement.h"

namespace modelet::scheduler {

struct CoreOptions {
  uint64_t session = 1;       // drawn anew by each scheduler process
  double heartbeat = 1;       // seconds between two heartbeats of an agent
  double dead_after = 5;      // seconds of silence after which a node counts as dead
  double stop_grace = 60;     // seconds a run may take to stop before it is aborted
  double replan_after = 10;   // seconds that a node has to be slow before its run is planned anew
  uint32_t most_replans = 5;  // of a run; 0: none
  size_t max_nodes = 1024;
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
using Action = std::variant<Send, Log>;

// What happens to the core.
struct Received {
  std::string peer;
  comm::control::ToSchedulerMessage message;
  comm::Identity sender = {};  // authenticated, unless the pool has no keys
};
struct PeerGone {  // a message could not be delivered
  std::string peer;
};
struct Tick {};
using Event = std::variant<Received, PeerGone, Tick>;

bool has_ended(comm::control::RunState state);
const char* state_name(comm::control::RunState state);  // "queued", ...

class Core {
 public:
  explicit Core(const CoreOptions& options) : options_(options) {}

  // `now` in seconds, never going backwards. Call with Tick about every `heartbeat` seconds or more often.
  std::vector<Action> handle(double now, const Event& event);

  // State, for tests and displays.
  std::vector<comm::control::RunStatusT> runs() const;
  std::vector<comm::control::NodeStatusT> nodes() const;
  // Addresses of the data that runs need which have not ended.
  std::set<std::string> data_in_use() const;

 private:
  struct Node {
    std::string peer;
    comm::control::RegisterT info;
    std::string key;  // name of the key it registered with
    double last_seen = 0;
    uint64_t run = 0;  // bound to; 0: free
    double bound_since = 0;
    bool confirmed = false;  // a heartbeat has named the run
    uint64_t step = 0;
    StepSeconds times;  // as last reported
  };
  struct Member {  // of a run's group; its index is the rank
    uint64_t node = 0;
    std::string name;
    std::string endpoint;        // empty: not prepared yet
    std::string public_key;      // of the endpoint
    uint64_t planned_bytes = 0;  // of its modelets
    double planned_seconds = 0;  // of computing in a step
    double speed = 1;            // beside what the node said of itself
    bool measured = false;       // that is how fast it was; else it is taken for as fast
    bool done = false;
    comm::control::Outcome outcome = comm::control::Outcome::Ok;
  };
  // A new plan of a run, while its members stop.
  struct Replan {
    std::vector<Member> nodes;  // that it is made for: all members, in their order, then spare ones
    nlohmann::json event;       // says what changes
    std::string checkpoint;     // to go on from; empty: not written yet
  };
  struct Run {
    comm::control::SubmitT submit;
    Experiment experiment;
    DataShape shape;
    comm::control::RunState state = comm::control::RunState::Queued;
    std::string detail;
    bool user_error = false;  // failed by what the user can correct
    uint32_t epoch = 0;
    std::vector<Member> members;
    std::vector<uint32_t> owner;  // [modelets] -> member
    std::vector<Member> spare;    // nodes that the plan gave no modelet
    Balance balance;
    std::optional<Replan> replan;
    uint32_t replans = 0;
    uint64_t step = 0;
    double submitted = 0, stop_asked = 0, ended = 0;
    double prepare_began = 0, prepare_seconds = 0;  // of the last start
    std::deque<std::string> events;                 // JSON
    std::set<std::string> watchers;                 // peers
  };
  using Runs = std::map<uint64_t, Run>;
  using Nodes = std::map<uint64_t, Node>;

  void refuse(const Received& received, const std::string& reason);

  void on(const std::string& peer, const comm::control::RegisterT& message);
  void on(const std::string& peer, const comm::control::HeartbeatT& message);
  void on(const std::string& peer, const comm::control::PreparedT& message);
  void on(const std::string& peer, const comm::control::RunEventT& message);
  void on(const std::string& peer, const comm::control::RunDoneT& message);
  void on(const std::string& peer, const comm::control::LeaveT& message);
  void on(const std::string& peer, const comm::control::SubmitT& message);
  void on(const std::string& peer, const comm::control::ListRunsT& message);
  void on(const std::string& peer, const comm::control::ListNodesT& message);
  void on(const std::string& peer, const comm::control::WatchT& message);
  void on(const std::string& peer, const comm::control::StopRunT& message);
  void on(const std::string& peer, const comm::control::FindDataPortT& message);
  template <class OfDataPort>
  void on(const std::string& peer, const OfDataPort&) {
    send(peer, comm::control::RefusedT{{}, "data is sent to the scheduler's other port"});
  }
  void tick();

  Nodes::iterator node_of(const std::string& peer);  // asks an unknown one to register
  void remove_node(Nodes::iterator node, const std::string& why);
  static bool is_bound(const Node& node, uint64_t run);
  void release(Node& node);
  Member* member_of(Run& run, uint64_t node);

  void start_waiting_runs();
  bool start(uint64_t id, Run& run);
  NodeCapacity capacity(uint64_t node, double speed) const;
  Plan plan_for(const Run& run, const std::vector<Member>& nodes) const;
  bool may_use_spares() const;
  bool is_free(const Member& spare) const;
  void plan_and_bind(uint64_t id, Run& run, std::vector<Member> chosen);
  void bind_group(uint64_t id, Run& run, std::vector<Member> chosen, const Plan& plan);
  void start_if_prepared(uint64_t id, Run& run);
  void finish_if_done(uint64_t id, Run& run);
  void ask_to_stop(uint64_t id, const Run& run);
  void observe(uint64_t id, Run& run, const nlohmann::json& progress);
  void replan(uint64_t id, Run& run, const std::vector<double>& measured, double seconds_left);
  void restart(uint64_t id, Run& run);
  static void note_fetching(Run& run, const std::string& json);
  void publish(uint64_t id, Run& run, const std::string& json);
  void set_state(uint64_t id, Run& run, comm::control::RunState state, const std::string& detail);
  void fail(uint64_t id, Run& run, const std::string& why, bool user_error = false);
  void end(uint64_t id, Run& run);
  void abort_members(uint64_t id, Run& run, const std::string& reason);
  bool make_room_for_run();

  comm::control::RunStatusT status(uint64_t id, const Run& run) const;
  void tell_watchers(uint64_t id, const Run& run);
  void send(const std::string& peer, comm::control::FromSchedulerMessage message);
  void log(std::string text);

  CoreOptions options_;
  double now_ = 0, last_tick_ = 0;
  comm::Identity sender_;  // of the message being handled
  LogLimit refusals_;
  uint64_t next_node_ = 1, next_run_ = 1;
  Nodes nodes_;
  std::map<std::string, uint64_t> node_of_peer_;
  Runs runs_;
  std::vector<Action> actions_;  // of the event being handled
};

}  // namespace modelet::scheduler
