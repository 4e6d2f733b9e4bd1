// Core: the decisions of the scheduler, as a pure state machine. Messages of agents and clients, plans and
// the passing of time go in; messages to send, lines to log and plans to make come out. It does no I/O and
// reads no clock, so a test drives it event by event.
//
// A run:   queued -> forming -> running -> finished | failed | stopped
//              ^        |          `-> stopping -^
//              `-- re-planned
//   queued     waits for nodes, then for its plan; first come, first served
//   forming    its nodes load data and bind their sockets
//   running    all are prepared and know each other's endpoints
//   stopping   asked to end with a checkpoint; told to abort if it has not after `stop_grace`
// When a node of a run dies, leaves or fails, the run fails and its other nodes are told to abort.
//
// A run is planned anew when one of its nodes stays notably slower than the others, or than planned if it is
// alone (scheduler/core/balance.h). Its nodes are asked to stop, which writes a checkpoint, and continue from
// there with the modelets of a plan that uses their measured speeds. Nodes of the run that a former plan had
// no use for count again if they are free. Until all have stopped and are placed anew the run is running, and
// keeps all its nodes.
//
// A node is bound to a run from Prepare until it reports RunDone (or a heartbeat without the run): a node
// that was told to abort and is still ending gets no other run.
//
// A name belongs to one living agent. Another process that registers under it is accepted once the first is
// dead: its connection is gone, which shows at once when the newcomer asks, or it has been silent for
// `dead_after`. If the first gives a sign of life instead, the newcomer is refused.
//
// A run belongs to the key that submitted it. Others see that it exists; only that key and those of
// administrators may watch or stop it. In a pool without keys everybody may do everything.
//
// An exception that nobody expected, at a message or a plan, is logged, and a client that waits for an answer is
// refused: no exception of an event ends the process.
//
// Invariants (tests/scheduler/core/core_storm_test.cc):
//   1. a node is bound to at most one run, and only runs that are forming, running or stopping wait for a
//      node;
//   2. a run that ended never changes again;
//   3. every run that was started ends once its nodes end or die;
//   4. the membership epoch of a run grows with each start of its group;
//   5. in a pool with keys, messages of agents have effects only with an agent's key, and those of users only
//      with a user's; the name of a node stays with the key that registered it.
//
// Files: pool.h has the state, run.h the life of a run, core.cc the events and the passing of time, agents.cc
// and clients.cc the messages of each of those. One thread.
#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/system/log.h"
#include "comm/control/control.h"
#include "scheduler/core/pool.h"
#include "scheduler/core/run.h"
#include "scheduler/plan/planning.h"

namespace modelet::scheduler {

// An event for the core.
struct Received {
  std::string peer;
  comm::control::ToSchedulerMessage message;
  comm::Identity sender = {};  // authenticated, unless the pool has no keys
  std::string address = {};    // of the peer's machine, as its connection has it; empty: unknown
};
struct PeerGone {  // a message could not be delivered
  std::string peer;
};
struct Tick {};
using Event = std::variant<Received, PeerGone, Planned, Tick>;

class Core {
 public:
  explicit Core(const CoreOptions& options) : pool_(options) {}

  // `now` in seconds, never going backwards. Call with Tick about every `heartbeat` seconds or more often.
  // Throws nothing.
  std::vector<Action> handle(double now, const Event& event);

  // State, for tests and displays.
  std::vector<comm::control::RunStatusT> runs() const;
  std::vector<comm::control::NodeStatusT> nodes() const;
  // Addresses of the data that runs need which have not ended, and the key that submitted one of those.
  std::map<std::string, std::string> data_in_use() const;

 private:
  using Nodes = std::map<uint64_t, Node>;
  using Names = std::map<std::string, Name>;

  void on(const Received& received);
  void on(const PeerGone& gone);
  void on(const Planned& answer);
  void on(const Tick&);

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
  template <class Other>
  void on(const std::string& peer, const Other&) {
    refuse(peer, "data is sent to the scheduler's other port");
  }

  void refuse(const std::string& peer, const std::string& reason);
  Nodes::iterator node_of(const std::string& peer);  // asks an unknown agent to register
  Nodes::iterator node_named(const std::string& name);
  std::string why_not_registered(const std::string& peer, const comm::control::RegisterT& message);
  std::string why_not_named(const std::string& name);
  void take_name(const std::string& name);
  size_t names_of_sender() const;
  Names::iterator idle_name_of_sender();
  void challenge(const std::string& newcomer, Node& node);
  void remove_node(Nodes::iterator node, const std::string& why);
  void start_waiting_runs();
  Run* run_of_user(const std::string& peer, uint64_t id, const char* verb);
  bool make_room_for_run();
  void check_submission(const comm::control::SubmitT& message, const Run& run) const;

  Pool pool_;
  double last_tick_ = 0;
  comm::Identity sender_;       // of the message being handled,
  std::string sender_address_;  // and where it came from
  LogLimit refusals_, failures_;
  std::map<std::string, uint64_t> node_of_peer_;
};

}  // namespace modelet::scheduler
