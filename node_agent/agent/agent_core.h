// AgentCore: the decisions of an agent, as a pure state machine. Messages of the scheduler, reports of the job
// and the passing of time go in; messages to send and what to do with the job come out. It does no I/O, reads
// no clock and draws no numbers: the program (node_agent/agent/agent.h) and a simulator drive it alike.
//
//   free -> preparing -> prepared -> training -> free
//              |            |           `-> stopping -^
//              `------------+-> ending -> free, or preparing what has come meanwhile
//
// - There is one job at a time. After PrepareJob it exists until the driver reports its RunDone, whatever is
//   asked of it in between; an abort may take its time.
// - A Prepare of a later epoch of the same run ends the present job at once, of which nothing more is reported,
//   and is carried out when that has ended. What belongs to an earlier epoch has no effect.
// - A scheduler that is away stops nobody. The agent asks to be registered, says for which run and epoch it
//   works, and sends what is not known to have arrived once more (node_agent/agent/outbox.h). Only if the
//   scheduler comes back as another pool is the job of no use to anybody, and ends without a report.
// - Asked to leave, it tells the scheduler so and works on until it is released or its patience is over. A
//   free agent whose scheduler is away leaves at once. When that is over, its job is aborted. Until then a free
//   agent stays while files of snapshots are on their way from it.
//
// Invariants (tests/node_agent/agent/agent_core_storm_test.cc): PrepareJob only while there is no job, StartJob
// once and only after Prepared; the epochs of a run that are reported never decrease; each Prepare is followed
// by RunDone of its epoch, or replaced by a later one; and who was asked to leave leaves.
//
// Plain state; one thread. Time is in seconds and never goes backwards.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "comm/control/control.h"
#include "node_agent/agent/outbox.h"

namespace modelet::agent {

// ---- events
struct Tick {
  uint64_t step = 0;        // that the job has completed; 0: there is none
  bool is_sending = false;  // files of snapshots are on their way to other nodes
};
struct FromScheduler {
  comm::control::FromSchedulerMessage message;
};
// The connection to the scheduler ended or another one began: what was sent before may be lost.
struct ConnectionLost {};
// Prepared, RunEvent and PeerMissed of the job that runs, and at last its RunDone.
struct FromJob {
  comm::control::ToSchedulerMessage message;
};
// A snapshot of a run, which may be over, is held here and elsewhere.
struct Held {
  uint64_t pool = 0;
  comm::control::SnapshotHeldT message;
};
// Within this time. Asked again, the shorter time counts; with none it leaves at once.
struct AskedToLeave {
  double seconds = 60;
  std::string reason;
};
using AgentEvent = std::variant<Tick, FromScheduler, ConnectionLost, FromJob, Held, AskedToLeave>;

// ---- actions, to be carried out in order
struct Send {
  comm::control::ToSchedulerMessage message;
};
// Whatever goes wrong in it is reported as RunDone.
struct PrepareJob {
  comm::control::PrepareT prepare;
};
struct StartJob {
  comm::control::StartT start;
};
struct StopJob {};  // at its next step boundary, with a snapshot
struct AbortJob {   // now
  std::string reason;
};
// Snapshots of the run before this step are not needed any more, but for those to keep.
struct DropSnapshots {
  uint64_t pool = 0, run = 0;
  uint32_t epoch = 0;
  uint64_t step = 0;
};
// Who may fetch what this agent holds of a run that it does not work for.
struct AdmitHolders {
  comm::control::AdmitT message;
};
// The scheduler's store is at this port of its host from now on.
struct StoreAt {
  uint16_t port = 0;
};
struct AgentLog {
  bool is_warning = false;
  std::string text;
};
// No event may follow. Refused: by the scheduler, for good. Stuck: the job does not end, though aborted.
struct EndAgent {
  enum class Why : uint8_t { kLeft, kRefused, kStuck } why = Why::kLeft;
  std::string text;
};
using AgentAction = std::variant<Send, PrepareJob, StartJob, StopJob, AbortJob, DropSnapshots, AdmitHolders,
                                 StoreAt, AgentLog, EndAgent>;

class AgentCore {
 public:
  // `self`: all but run and epoch.
  explicit AgentCore(comm::control::RegisterT self) : self_(std::move(self)) {}

  std::vector<AgentAction> handle(double now, const AgentEvent& event);
  // When the next Tick is due; earlier and later ones do no harm.
  double next_tick() const;

  bool is_registered() const { return node_ != 0; }
  bool has_job() const { return job_.has_value(); }
  uint64_t pool() const { return pool_; }  // or the session of a scheduler without; 0: never registered
  double silent_since() const { return last_heard_; }
  double dead_after() const { return dead_after_; }

 private:
  struct Job {
    enum class State : uint8_t { kPreparing, kPrepared, kTraining, kStopping, kEnding };
    uint64_t run = 0;
    uint32_t epoch = 0, size = 0;
    State state = State::kPreparing;
    bool reported = true;  // somebody wants to hear of it
  };
  struct Leaving {
    double deadline = 0;  // until it waits to be released
    std::string reason;
    bool released = false;  // or its patience is over
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
  void on(const comm::control::PrepareT& message);
  void on(const comm::control::StartT& message);
  void on(const comm::control::StopT& message);
  void on(const comm::control::AbortT& message);
  void on(const comm::control::StableT& message);
  void on(const comm::control::AdmitT& message);
  void on(const comm::control::ReleasedT& message);
  template <class Other>
  void on(const Other&) {}  // is meant for clients

  void on_job(const comm::control::RunDoneT& message);
  void on_job(const comm::control::PreparedT& message);
  void on_job(const comm::control::RunEventT& message);
  void on_job(const comm::control::PeerMissedT& message);
  template <class Other>
  void on_job(const Other&) {}

  void beat(uint64_t step);
  void register_now();
  template <class Message>
  void name_work(Message& message) const;
  void tell(comm::control::ToSchedulerMessage message);
  void refuse(const comm::control::PrepareT& message, const std::string& why);
  void prepare(comm::control::PrepareT message);
  bool is_of_next(uint64_t run, uint32_t epoch) const;
  bool is_of_job(uint64_t run, uint32_t epoch) const;
  void give_up_next(const std::string& why, bool retry);
  void stop_job();
  void abort_job(const std::string& reason, bool is_reported);
  void wish_to_leave();
  void leave_now(const std::string& reason);
  void leave_if_free();
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
  uint16_t store_port_ = 0;                // as last told; 0: there is none
  double heartbeat_ = 1, dead_after_ = 5;  // seconds; the scheduler says
  double next_beat_ = 0, last_heard_ = 0;  // last_heard_: of the scheduler, or when it was given up
  uint64_t beats_ = 0, events_ = 0;        // numbers of the last ones
  Outbox outbox_;

  std::optional<Job> job_;
  std::optional<comm::control::PrepareT> next_;  // waits for the job's end
  std::map<uint64_t, uint32_t> epochs_;          // run -> the latest that was asked for, in this pool
  std::optional<Leaving> leaving_;
  double ending_since_ = 0;  // the job, while the agent leaves; 0: not
  bool is_sending_ = false, ended_ = false;
};

}  // namespace modelet::agent
