// Core: the decisions of the scheduler, as a pure state machine. Messages of agents and clients, plans and
// the passing of time go in; messages to send, lines to log and plans to make come out. It does no I/O and
// reads no clock, so a test drives it event by event.
//
// A run:   queued -> forming -> running -> finished | failed | stopped
//                       ^          |`-> stopping -^
//                       |          v
//                       `--- recovering <-> waiting
//   queued      waits for nodes, then for its plan (queue.cc)
//   forming     its nodes load data and bind their sockets
//   running     all are prepared and know each other's endpoints
//   stopping    asked to end with a checkpoint; told to abort if it has not after `stop_grace`
//   recovering  a node is gone: the group of the next epoch is planned
//   waiting     there are too few nodes for it, or nobody who is there has its files
// A run outlives its nodes if the pool has an id (Run::survives). If not, it fails with the first of its nodes,
// and the others are told to abort.
//
// A run is planned anew when one of its nodes stays notably slower than the others, or than planned if it is
// alone (scheduler/core/values/balance.h), when other nodes can help, and when a node wishes to leave. Its nodes
// are asked to stop, which writes a snapshot (or a checkpoint in the shared folder), and continue from there.
// Nodes of the run that a former plan had no use for count again if they are free. Until all have stopped and
// are placed anew the run is running, and keeps all its nodes.
//
// What must outlive the scheduler's process is in the action Persist, the first one of its event. The next Core
// begins with these records, and takes over the groups that have worked on meanwhile (takeover.cc).
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
//   1. a node is bound to at most one run, and no run is waited for that has not begun;
//   2. a run that ended never changes again;
//   3. every run that was started ends once its nodes end or die;
//   4. the membership epoch of a run grows with each start of its group;
//   5. in a pool with keys, messages of agents have effects only with an agent's key, and those of users only
//      with a user's; the name of a node stays with the key that registered it.
//
// Files: run/pool.h has the state, run/run.h the life of a run, core.cc the events and the passing of time,
// agents.cc and clients.cc the messages of each of those, queue.cc whose turn it is, takeover.cc what a former
// scheduler left. One thread.
#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/system/log.h"
#include "comm/control/control.h"
#include "scheduler/core/run/pool.h"
#include "scheduler/core/run/run.h"
#include "scheduler/ledger/records.h"
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
  // `restored`: all that a former scheduler's Core has persisted.
  explicit Core(const CoreOptions& options, const Records& restored = {});

  // `now` in seconds, never going backwards. Call with Tick about every `heartbeat` seconds or more often.
  // Throws nothing.
  std::vector<Action> handle(double now, const Event& event);

  // State, for tests and displays.
  std::vector<comm::control::RunStatusT> runs() const;
  std::vector<comm::control::NodeStatusT> nodes() const;
  // Addresses of the data that runs need which have not ended, and the key that submitted one of those.
  std::map<std::string, std::string> data_in_use() const;
  // Addresses of files that runs have made and the user may want, and the key that submitted the run.
  std::multimap<std::string, std::string> results() const;

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
  void on(const std::string& peer, const comm::control::WishToLeaveT& message);
  void on(const std::string& peer, const comm::control::PeerMissedT& message);
  void on(const std::string& peer, const comm::control::SnapshotHeldT& message);
  void on(const std::string& peer, const comm::control::SubmitT& message);
  void on(const std::string& peer, const comm::control::ListRunsT& message);
  void on(const std::string& peer, const comm::control::ListNodesT& message);
  void on(const std::string& peer, const comm::control::WatchT& message);
  void on(const std::string& peer, const comm::control::StopRunT& message);
  void on(const std::string& peer, const comm::control::FindDataPortT& message);
  void on(const std::string& peer, const comm::control::DrainNodeT& message);
  void on(const std::string& peer, const comm::control::FindRunFilesT& message);
  void on(const std::string& peer, const comm::control::FindRunLogT& message);
  template <class Other>
  void on(const std::string& peer, const Other&) {
    refuse(peer, "this scheduler does not understand this message here: data has a port of its own");
  }

  void refuse(const std::string& peer, const std::string& reason);
  void keep_log(Node& node, const Run& run, const nlohmann::json& event);
  Nodes::iterator node_of(const std::string& peer);  // asks an unknown agent to register
  Nodes::iterator node_named(const std::string& name);
  std::string why_not_registered(const std::string& peer, const comm::control::RegisterT& message);
  std::string why_not_named(const std::string& name);
  void take_name(const std::string& name);
  size_t names_of_sender() const;
  Names::iterator idle_name_of_sender();
  void tell_again(const Node& node, uint64_t id);
  void challenge(const std::string& newcomer, Node& node);
  void lose_node(Nodes::iterator node, const std::string& why);
  void remove_node(Nodes::iterator node, const std::string& why);
  void end_work_of(Node& node, uint64_t id, const std::string& why);
  void release_leavers();
  std::vector<Action> take_actions();
  void restore(const RunRecord& record);
  void begin();
  void take_over(uint64_t node, const comm::control::RegisterT& message);
  void judge();
  bool seems_cut_off();
  void start_waiting_runs();
  std::vector<size_t> sizes_of_groups() const;
  Run* run_of_user(const std::string& peer, uint64_t id, const char* verb);
  bool make_room_for_run();
  void check_submission(const comm::control::SubmitT& message, const Run& run) const;

  Pool pool_;
  double last_tick_ = 0, time_written_ = 0;
  bool is_cut_off_ = false;      // or so it seems
  bool has_begun_ = false;       // an event has come
  bool awaits_members_ = false;  // runs were restored that have not ended
  double judge_at_ = 0;          // when those who have not come back are lost; 0: that is decided
  comm::Identity sender_;        // of the message being handled,
  std::string sender_address_;   // and where it came from
  LogLimit refusals_, failures_;
  std::map<std::string, uint64_t> node_of_peer_;
};

}  // namespace modelet::scheduler
