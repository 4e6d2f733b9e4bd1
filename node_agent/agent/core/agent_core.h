// AgentCore: makes the decisions of an agent. It is a pure state machine. The inputs are messages from the
// scheduler, reports of the job, and the passing of time. The outputs are messages to send and what to do
// with the job. It does no I/O, reads no clock and draws no random numbers, so the program
// (node_agent/agent/agent.h) and a simulator drive it in the same way.
//
//   free -> preparing -> prepared -> training -> free
//              |            |           `-> stopping -^
//              `------------+-> ending -> free, or preparing the next Prepare, if one waits
//
// - There is one job at a time. It exists from PrepareJob until the driver reports its RunDone, whatever is
//   asked of it in between. An abort may take a while.
// - A Prepare for a later epoch of the same run ends the present job at once, and nothing more is reported
//   of that job. The Prepare is carried out when the job has ended. Messages for an earlier epoch have no
//   effect, and neither have those that come twice. They are counted.
// - A job goes on while the scheduler is away. The agent keeps trying to register, and says for which run
//   and epoch it works. Once registered, it sends again what may not have arrived
//   (node_agent/agent/core/outbox.h). Only if the scheduler comes back as another pool does nobody need the job:
//   then it ends without a report.
// - An agent that the scheduler does not let in waits, and asks again.
// - If it is asked to leave, the agent tells the scheduler and works on until it is released or its time is
//   over. Then its job is aborted. A free agent whose scheduler is away leaves at once. A free agent stays,
//   until its time is over, while it is still sending files of snapshots.
//
// Invariants (tests/node_agent/agent/core/agent_core_storm_test.cc):
// - PrepareJob comes only while there is no job. StartJob comes once, and only after Prepared.
// - The epochs of a run that are reported never decrease.
// - Each Prepare is followed by RunDone of its epoch, or replaced by a later Prepare.
// - An agent that was asked to leave leaves.
//
// Plain state, without locks: one thread. Time is in seconds and never goes backwards.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/system/log.h"
#include "comm/control/control.h"
#include "node_agent/agent/core/outbox.h"

namespace modelet::agent {

// ---- events
struct Tick {
  uint64_t step = 0;        // steps that the job has completed; 0: no job
  bool is_sending = false;  // files of snapshots are on their way to other nodes
  // As in Heartbeat.
  uint64_t disk_free_bytes = 0;
  std::string suspended = {};
  uint64_t sent_bytes = 0, received_bytes = 0;
};
struct FromScheduler {
  comm::control::FromSchedulerMessage message;
};
// The connection to the scheduler ended, or a new one began. What was sent before may be lost.
struct ConnectionLost {};
// Prepared, RunEvent and PeerMissed of the running job, and finally its RunDone.
struct FromJob {
  comm::control::ToSchedulerMessage message;
};
// A snapshot of a run is held on this node and on others. The run may be over.
struct Held {
  uint64_t pool = 0;
  comm::control::SnapshotHeldT message;
};
// The agent is to leave within `seconds`. If it is asked again, the shorter time counts. With 0 it leaves
// at once.
struct AskedToLeave {
  double seconds = 60;
  std::string reason;
  bool comes_back = false;  // when its owner lends the machine again
};
using AgentEvent = std::variant<Tick, FromScheduler, ConnectionLost, FromJob, Held, AskedToLeave>;

// ---- actions, to be carried out in order
struct Send {
  comm::control::ToSchedulerMessage message;
};
// Whatever goes wrong in this job is reported as RunDone.
struct PrepareJob {
  comm::control::PrepareT prepare;
};
struct StartJob {
  comm::control::StartT start;
};
struct StopJob {};  // after the current step, with a snapshot
struct AbortJob {   // now
  std::string reason;
};
struct TraceJob {
  uint32_t steps = 0;
};
// Snapshots of the run before this step are not needed any more, except those to keep.
struct DropSnapshots {
  uint64_t pool = 0, run = 0;
  uint32_t epoch = 0;
  uint64_t step = 0;
};
// Says who may fetch what this agent holds of a run for which it does not work.
struct AdmitHolders {
  comm::control::AdmitT message;
};
// From now on the scheduler's store is at this port of the scheduler's host.
struct StoreAt {
  uint16_t port = 0;
};
// The newest snapshots of this node go to the scheduler's store as well.
struct SaveSnapshots {};
struct AgentLog {
  bool is_warning = false;
  std::string text;
};
// No event may follow. kRefused: the scheduler refuses this agent for good. kStuck: the job does not end,
// though it was aborted; if the agent was to come back, somebody has to start its program again.
struct EndAgent {
  enum class Why : uint8_t { kLeft, kRefused, kStuck } why = Why::kLeft;
  std::string text;
  bool comes_back = false;
};
using AgentAction = std::variant<Send, PrepareJob, StartJob, StopJob, AbortJob, TraceJob, DropSnapshots, AdmitHolders,
                                 StoreAt, SaveSnapshots, AgentLog, EndAgent>;

class AgentCore {
 public:
  // `self`: all members but run and epoch.
  explicit AgentCore(comm::control::RegisterT self) : self_(std::move(self)) {}

  std::vector<AgentAction> handle(double now, const AgentEvent& event);
  // When the next Tick is due. An earlier or later one does no harm.
  double next_tick() const;

  bool is_registered() const { return node_ != 0; }
  bool has_job() const { return job_.has_value(); }
  // 0: never registered.
  uint64_t pool() const { return pool_; }
  double silent_since() const { return last_received_; }
  double dead_after() const { return dead_after_; }

 private:
  struct Job {
    enum class State : uint8_t { kPreparing, kPrepared, kTraining, kStopping, kEnding };
    uint64_t run = 0;
    uint32_t epoch = 0, size = 0;
    State state = State::kPreparing;
    bool reported = true;  // its end will be reported
  };
  struct Leaving {
    double deadline = 0;  // until then it waits to be released
    std::string reason;
    bool comes_back = false;
    bool released = false;  // or its time is over
  };

  void on(const Tick& tick);
  void on(const FromScheduler& event);
  void on(const ConnectionLost&);
  void on(const FromJob& event);
  void on(const Held& event);
  void on(const AskedToLeave& event);

  void on(const comm::control::RegisteredT& message);
  void on(const comm::control::AliveT& message);
  void on(const comm::control::RegisterAgainT& message);
  void on(const comm::control::RefusedT& message);
  void on(const comm::control::PendingT& message);
  void on(const comm::control::PrepareT& message);
  void on(const comm::control::StartT& message);
  void on(const comm::control::StopT& message);
  void on(const comm::control::TraceT& message);
  void on(const comm::control::AbortT& message);
  void on(const comm::control::StableT& message);
  void on(const comm::control::AdmitT& message);
  void on(const comm::control::ReleasedT& message);
  template <class Other>
  void on(const Other&) {
    ignore("a message for clients");
  }

  void on_job(const comm::control::RunDoneT& message);
  void on_job(const comm::control::PreparedT& message);
  void on_job(const comm::control::RunEventT& message);
  void on_job(const comm::control::PeerMissedT& message);
  template <class Other>
  void on_job(const Other&) {}

  void beat(const Tick& tick);
  void register_now();
  template <class Message>
  void name_work(Message& message) const;
  void post(comm::control::ToSchedulerMessage message);
  void refuse(const comm::control::PrepareT& message, const std::string& why);
  void prepare(comm::control::PrepareT message);
  bool is_of_next(uint64_t run, uint32_t epoch) const;
  bool is_of_job(uint64_t run, uint32_t epoch) const;
  void give_up_next(const std::string& why, bool retry);
  void stop_job();
  void abort_job(const std::string& reason, bool is_reported);
  void request_leave();
  void leave_now(const std::string& reason);
  void leave_if_free();
  void ignore(const char* message);
  struct HolderState {
    uint32_t admitted = 0;                 // epoch of the latest Admit
    std::pair<uint32_t, uint64_t> stable;  // epoch and step of the latest Stable
  };
  HolderState& holder_state(uint64_t run);
  void log(std::string text, bool is_warning = false);
  template <class Action>
  void act(Action action) {
    actions_.emplace_back(std::move(action));
  }

  const comm::control::RegisterT self_;
  double now_ = 0;
  std::vector<AgentAction> actions_;

  uint64_t node_ = 0;  // 0: not registered
  uint64_t pool_ = 0;
  uint16_t store_port_ = 0;                // as the scheduler said last; 0: none
  double heartbeat_ = 1, dead_after_ = 5;  // seconds; the scheduler sets them
  double next_beat_ = 0;
  double last_received_ = 0;         // a message of the scheduler, or when it was given up
  uint64_t beats_ = 0, events_ = 0;  // the numbers used last
  Outbox outbox_;

  std::optional<Job> job_;
  std::optional<comm::control::PrepareT> next_;  // waits until the job has ended
  std::map<uint64_t, uint32_t> epochs_;          // run -> the latest epoch that this pool asked for
  std::map<uint64_t, HolderState>
      holder_states_;  // run -> what the scheduler sent about files that this node holds
  std::optional<Leaving> leaving_;
  double ending_since_ = 0;  // when the leaving agent began to wait for its aborted job; 0: it does not
  bool is_sending_ = false, ended_ = false;
  std::string waits_for_;  // what the scheduler said last of an agent that it does not let in yet
  LogLimit ignored_;
};

}  // namespace modelet::agent
