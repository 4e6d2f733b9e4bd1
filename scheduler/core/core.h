// Core: the decisions of the scheduler, as a pure state machine. Messages of agents and clients, plans and
// the passing of time go in. Messages to send, lines to log and plans to make come out. Core does no I/O and
// reads no clock, so a test drives it event by event.
//
// A run:   queued -> forming -> running -> finished | failed | stopped
//                       ^          |`-> stopping -^
//                       |          v
//                       `--- recovering <-> waiting
//   queued      waits for nodes, then for its plan (queue.cc)
//   forming     its nodes load data and bind their sockets
//   running     all nodes are prepared and know each other's endpoints
//   stopping    was asked to end with a checkpoint; is aborted if it has not ended after `stop_grace`
//   recovering  a node is gone or cannot work for the run; the group of the next epoch is planned
//   waiting     cannot form its next group: too few nodes, or no node that is there has its files
// A run outlives its nodes: when one is lost, the others go on with a spare node or without it.
//
// A run is planned anew in three cases: one of its nodes stays notably slower than the others (or, if it is
// the only node, slower than planned; scheduler/core/values/balance.h); other nodes could help; or one of its
// nodes asks to leave. The nodes of the run are then asked to stop. Stopping writes a snapshot, from
// which the next group continues. Free nodes to which an earlier plan gave no modelets are considered again.
// The run counts as running, and keeps all its nodes, until all of them have stopped and the modelets are
// placed anew.
//
// What must outlive the scheduler's process is in the action Persist, which is always the first action of its
// event. The Core of the next process starts from these records, and takes over the groups that went on
// working meanwhile (takeover.cc).
//
// A node is bound to a run from Prepare until it reports RunDone, or sends a heartbeat without the run. A
// node that was told to abort and has not ended yet therefore gets no other run.
//
// A name belongs to one living agent. A second process that registers under the same name is accepted once
// the first is dead. The first counts as dead if its connection is gone (the second process's request makes
// this show at once), or if it has been silent for `dead_after`. If the first gives a sign of life instead,
// the second is refused.
//
// A run belongs to the key that submitted it. Other keys see that it exists. Only the key of the run and the
// keys of administrators may watch or stop it. In a pool without keys everybody may do everything.
//
// A run of towers consists of tasks, and each of them is a run of its own that its parent looks after (tasks.cc). When
// nothing waits for nodes, a free node takes a second copy of the task that has longest to go. The first result counts.
//
// An unexpected exception while a message or a plan is handled is logged, and a client that waits for an
// answer is refused. No exception of an event ends the process.
//
// Invariants:
//   1. a node is bound to, or reserved for, at most one run, which exists; a run to which nodes are bound is no
//      longer queued;
//   2. a run that has ended never changes again;
//   3. each member of a group that forms, runs or stops is bound to the run until it is done, so every run that
//      was started ends once its nodes end or die;
//   4. the membership epoch of a run grows with each start of its group;
//   5. in a pool with keys, messages of agents have effects only with an agent's key, and those of users only
//      with a user's; who has neither can only wait to be let in; the name of a node stays with the key that registered it;
//   6. the result of a task, once accepted, stays, and is a run of this task that has finished; at most two runs of a
//      task have not ended, and only if no task of their run waits for nodes.
// They are checked after each event, in every build (scheduler/core/invariants.h). If one is broken, the process
// aborts with a message. Nothing that follows from the event is written down or sent then, so the next process
// begins with the state before it.
//
// Files:
//   run/pool.h     the state
//   run/run.h      the life of a run
//   core.cc        the events, and the passing of time
//   agents.cc      messages of agents
//   clients.cc     messages of clients
//   entry.cc       agents that are not let in yet, and which nodes there are, were or will be
//   queue.cc       which run gets nodes next
//   tasks.cc       runs that consist of tasks
//   takeover.cc    what a former scheduler left
//   invariants.cc  what holds after each event
//
// One thread.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/system/log.h"
#include "comm/control/control.h"
#include "scheduler/core/invariants.h"
#include "scheduler/core/run/pool.h"
#include "scheduler/core/run/run.h"
#include "scheduler/ledger/records.h"
#include "scheduler/plan/planning.h"

namespace modelet::scheduler {

// An event for the core.
struct Received {
  std::string peer;
  comm::control::ToSchedulerMessage message;
  comm::Identity sender = {};  // authenticated if the pool has keys
  std::string address = {};    // of the peer's machine, taken from the connection; empty: unknown
};
struct PeerGone {  // a message could not be delivered
  std::string peer;
};
struct Tick {};
// Answers the action LetIn: the key is in the allow-list, or `why_not` says why not.
struct LetInDone {
  LetIn asked;
  std::string why_not;
};
using Event = std::variant<Received, PeerGone, Planned, Tick, LetInDone>;

class Core {
 public:
  // `restored`: everything that the Core of a former scheduler has persisted.
  explicit Core(const CoreOptions& options, const Records& restored = {});

  // Handles one event and returns what follows from it. `now` is in seconds and never goes backwards. Pass a
  // Tick at least about every `heartbeat` seconds. Throws nothing.
  std::vector<Action> handle(double now, const Event& event);
  // The same for several events: add() each, and take() what follows from all of them. What is done once for all
  // is done in take(): runs that wait get nodes, and changes are written down. add() throws nothing.
  void add(double now, const Event& event);
  std::vector<Action> take();
  // Whether a key may not hold so much more. A submission of so much is refused.
  bool is_key_full(const std::string& key, const Holding& more) const { return pool_.is_key_full(key, more); }

  // State, for tests and displays.
  std::vector<comm::control::RunStatusT> runs() const;
  // `all`: also those that were lost, and those that wait to be let in.
  std::vector<comm::control::NodeStatusT> nodes(bool all = false) const;
  // How often something went wrong, since this object was made; but losses of nodes are all that the records know.
  struct Counts {
    uint64_t losses = 0, refused = 0, refused_keys = 0, errors = 0;  // refused: messages, some with an unknown key
  };
  Counts counts() const { return {pool_.losses, refusals_.count(), refused_keys_, failures_.count()}; }
  // Empty: there is no such run, or no node works for it.
  std::vector<Run::Share> placement(uint64_t run) const;
  // The addresses of the files that the store must keep, each with the key that submitted one of the runs
  // which need it: data and snapshots of runs that have not ended.
  std::map<std::string, std::string> data_in_use() const;
  // The addresses of data and snapshots of all runs that are known, ended or not. If the store needs room, it
  // removes other files first, such as those of superseded snapshots.
  std::set<std::string> known_data() const;
  // The addresses of files that runs have made and that the user may want, each with the key that submitted
  // the run.
  std::multimap<std::string, std::string> results() const;
  // The addresses of files that the present runs of the nodes name, each with the key of such a node. Empty in
  // a pool without keys.
  std::multimap<std::string, std::string> files_of_agents() const;

 private:
  using Nodes = std::map<uint64_t, Node>;
  using Names = std::map<std::string, Name>;

  void on(const Received& received);
  void on(const PeerGone& gone);
  void on(const Planned& answer);
  void on(const Tick&);
  void on(const LetInDone& answer);

  void on(const std::string& peer, const comm::control::RegisterT& message);
  void on(Nodes::iterator node, const comm::control::HeartbeatT& message);
  void on(Nodes::iterator node, const comm::control::PreparedT& message);
  void on(Nodes::iterator node, const comm::control::RunEventT& message);
  void on(Nodes::iterator node, const comm::control::RunDoneT& message);
  void on(Nodes::iterator node, const comm::control::LeaveT& message);
  void on(Nodes::iterator node, const comm::control::LeaveRequestT& message);
  void on(Nodes::iterator node, const comm::control::PeerMissedT& message);
  void on(Nodes::iterator node, const comm::control::SnapshotHeldT& message);
  void on(const std::string& peer, const comm::control::SubmitT& message);
  void on(const std::string& peer, const comm::control::ListRunsT& message);
  void on(const std::string& peer, const comm::control::ListNodesT& message);
  void on(const std::string& peer, const comm::control::WatchT& message);
  void on(const std::string& peer, const comm::control::StopRunT& message);
  void on(const std::string& peer, const comm::control::FindDataPortT& message);
  void on(const std::string& peer, const comm::control::DrainNodeT& message);
  void on(const std::string& peer, const comm::control::FindRunFilesT& message);
  void on(const std::string& peer, const comm::control::ApproveNodeT& message);
  void on(const std::string& peer, const comm::control::EnrolT& message);
  void on(const std::string& peer, const comm::control::TraceRunT& message);
  void on(const std::string& peer, const comm::control::FindRunLogT& message);
  template <class Message>
  void on(const std::string& peer, const Message& message) {
    if constexpr (requires(Nodes::iterator node) { on(node, message); }) {
      if (const auto node = node_of(peer); node != pool_.nodes.end()) on(node, message);
    } else {
      refuse(peer, "this scheduler does not understand this message here: data has a port of its own");
    }
  }

  void require_key_of(comm::Role role) const;
  void refuse(const std::string& peer, const std::string& reason);
  void ignore(const Node& node, const char* message);
  void let_wait(const std::string& peer, const comm::control::RegisterT& message);
  bool is_name_free(const std::string& name, const std::string& key) const;
  void forget_absent();
  comm::control::NodeStatusT status_of(const Node& node) const;
  void keep_log(Node& node, const Run& run, const std::string& lines);
  // Of an agent that is not known: end(), and asks it to register.
  Nodes::iterator node_of(const std::string& peer);
  std::string why_not_registered(const std::string& peer, const comm::control::RegisterT& message);
  std::string why_not_named(const std::string& name);
  void take_name(const std::string& name);
  size_t names_of_sender() const;
  Names::iterator idle_name_of_sender();
  void resend(const Node& node, uint64_t id);
  void challenge(const std::string& newcomer, Node& node);
  void lose_node(Nodes::iterator node, const std::string& why);
  void show_as_lost(comm::control::NodeStatusT status, const std::string& why);
  void remove_node(Nodes::iterator node, const std::string& why);
  void end_work_of(Node& node, uint64_t id, const std::string& why);
  void release_leavers();
  RunRecord record_of(Run& run);
  void guarded(const std::function<void()>& work, const std::string& asks);
  void restore(const RunRecord& record);
  void restore(const NodeRecord& record);
  void begin();
  void take_over(uint64_t node, const comm::control::RegisterT& message);
  void judge();
  bool seems_cut_off();
  void settle();
  void start_waiting_runs();
  bool start_next_run(std::set<uint64_t>& tried);
  Run& add_task(uint64_t parent, uint32_t task, std::optional<comm::Snapshot> from = {});
  void look_after_tasks();
  bool give_up_copies();
  void start_copies();
  std::map<uint64_t, size_t> nodes_of_tasks() const;
  Run* run_of_user(const std::string& peer, uint64_t id, const char* verb);
  const Run* submitted_with(uint64_t token) const;
  bool make_room_for_run(const Holding& wanted, std::string& why);
  void forget_run(uint64_t id);
  void check_submission(const comm::control::SubmitT& message, const Run& run) const;

  Pool pool_;
  Invariants invariants_;
  double last_tick_ = 0, time_written_ = 0;
  bool is_cut_off_ = false;     // whether this machine seems to be cut off from most nodes
  bool has_begun_ = false;      // the first event has come
  bool queue_moves_ = false;    // something has happened for which a run may have waited
  double judge_at_ = 0;         // when nodes that did not come back are lost; 0: already decided
  comm::Identity sender_;       // of the message being handled
  std::string sender_address_;  // of the machine that sent this message
  uint64_t refused_keys_ = 0;
  LogLimit refusals_, ignored_, failures_, strangers_, newcomers_;
  std::map<std::string, uint64_t> node_of_peer_;
};

}  // namespace modelet::scheduler
