// Run: a submission on its way from the queue to its end. Plain data, which only its methods change. Methods
// are given what they need of the pool, and what they change there (for whom nodes work, messages, lines of
// the log).
//
// A plan is requested, and arrives as an event of its own (planned()), up to seconds later:
//   for its start   the run is queued; the nodes that the plan is made for are kept for it;
//   for a gain      it is running; the plan only tells whether another placement would be worth it;
//   to go on        all its nodes have stopped to be placed anew, and are kept.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "comm/control/control.h"
#include "scheduler/core/balance.h"
#include "scheduler/plan/planning.h"

namespace modelet::scheduler {

struct Pool;
struct Node;

bool has_ended(comm::control::RunState state);
const char* state_name(comm::control::RunState state);  // "queued", ...

struct Run {
  struct Member {  // of the run's group; its index is the rank
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
  // A plan that was requested.
  struct Planning {
    enum class Purpose : uint8_t { kStart, kGain, kGoOn };
    uint64_t number = 0;  // of the request
    Purpose purpose = Purpose::kStart;
    std::vector<Member> nodes;  // that it is made for, in this order
    // For a gain: the slowest member, its time a step and how much longer than planned that is, and how long
    // the run would still take.
    size_t slowest = 0;
    double slowest_seconds = 0, slower = 0, seconds_left = 0;
  };
  // Another placement, while the members stop.
  struct Replan {
    std::vector<Member> nodes;  // all members, in their order, then spare ones
    std::string slow_node;
    double slower = 0;  // than planned
    uint64_t moved_modelets = 0;
    double gain = 0;         // share of the step's computing
    std::string checkpoint;  // to go on from; empty: not written yet
  };

  // ---- what happens to it

  // Requests a plan with free nodes if there are enough. False if it waits for nodes that work for other
  // runs: later runs must not take them away from it. A run that wants more nodes than the pool has holds up
  // nobody.
  bool try_to_start(Pool& pool);
  void planned(Pool& pool, const Planned& answer);
  void prepared(Pool& pool, Member& member, const comm::control::PreparedT& message);
  void reported(Pool& pool, uint64_t node, const nlohmann::json& event);
  void member_done(Pool& pool, Member& member, const comm::control::RunDoneT& message);
  void node_gone(Pool& pool, uint64_t node, const std::string& name, const std::string& why);
  void asked_to_stop(Pool& pool);
  void time_passed(Pool& pool);
  void fail(Pool& pool, const std::string& why, bool by_user = false);

  Member* member(uint64_t node);
  // A node that has stopped to continue with another placement.
  bool keeps(const Member& member) const { return replan && member.done; }
  comm::control::RunStatusT status(double now) const;
  void tell_watchers(Pool& pool) const;

  // ---- what it is

  uint64_t id = 0;
  std::string submitter;  // name of the key that submitted it; empty without keys
  bool by_admin = false;  // that is an administrator's
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
  std::optional<Planning> planning;
  std::optional<Replan> replan;
  Balance balance;
  uint32_t replans = 0;
  uint64_t step = 0;
  double submitted = 0, stop_asked = 0, ended = 0;  // seconds of the scheduler's clock
  double prepare_began = 0, prepare_seconds = 0;    // of the last start
  std::deque<std::string> events;                   // JSON
  std::set<std::string> watchers;                   // peers

 private:
  std::vector<uint64_t> choose(const Pool& pool, std::vector<uint64_t> free, size_t wanted) const;
  void ask_for_plan(Pool& pool, Planning wanted);
  void forget_planning(Pool& pool);
  void end_planning(Pool& pool);
  void form_group(Pool& pool, std::vector<Member> chosen, const Plan& plan);
  void send_prepare(Pool& pool) const;
  std::string unreachable() const;
  void start_if_prepared(Pool& pool);
  void finish_if_done(Pool& pool);
  void observe(Pool& pool, const nlohmann::json& progress);
  void look_for_gain(Pool& pool, const std::vector<double>& measured, double seconds_left);
  void stop_for_gain(Pool& pool, Planning wanted, const Plan& plan);
  void go_on(Pool& pool);
  void ask_members_to_stop(Pool& pool) const;
  void abort_members(Pool& pool, const std::string& reason) const;
  void note_data(const std::string& kind, const nlohmann::json& event);
  void publish(Pool& pool, const nlohmann::json& event);
  void set_state(Pool& pool, comm::control::RunState to, const std::string& why);
};

}  // namespace modelet::scheduler
