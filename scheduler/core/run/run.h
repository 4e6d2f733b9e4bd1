// Run: a submission on its way from the queue to its end. Its members are plain data, which only its methods
// change. Methods get the Pool as an argument; they change there which nodes work for the run, and add
// messages and lines to log.
//
// A plan is requested, and arrives as an event of its own (planned()) up to seconds later. It has one of
// three purposes:
//   kStart  the run is queued; the nodes in the plan are reserved for it;
//   kGain   the run is running; the plan only tells whether another placement would be worth a new group;
//   kGoOn   the group changes; the remaining nodes and the new ones are reserved for the run.
//
// Every change of a group is the same operation (go_on): the group of the next epoch is formed and continues
// from saved state. That state is one of these:
//   - the newest stable snapshot;
//   - the snapshot of the last step even if it is not stable, provided that all ranks have reported its files
//     and none of them was lost since.
//
// Files:
//   run.cc       what the nodes report, and the end of the run
//   group.cc     plans, and the start of a group
//   replan.cc    slow nodes, and nodes that could help
//   recovery.cc  losses, nodes that leave, nodes that cannot work for the run, snapshots
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "comm/control/control.h"
#include "scheduler/core/values/accounts.h"
#include "scheduler/core/values/balance.h"
#include "scheduler/core/values/misses.h"
#include "scheduler/core/values/snapshots.h"
#include "scheduler/ledger/records.h"
#include "scheduler/plan/planning.h"

namespace modelet::scheduler {

struct Pool;
struct Node;

bool has_ended(comm::control::RunState state);
const char* state_name(comm::control::RunState state);  // "queued", ...

struct Run {
  // A node of the run's group. Its index in `members` is its rank.
  struct Member {
    uint64_t node = 0;  // 0: it is not in the pool now
    std::string name;
    uint64_t incarnation = 0;    // of the agent process
    std::string endpoint;        // empty: not prepared yet
    std::string public_key;      // of the endpoint
    uint64_t planned_bytes = 0;  // of its modelets
    uint64_t memory_bytes = 0;   // planned for all that it needs
    double planned_seconds = 0;  // that it computes in a step
    double speed = 1;            // relative to what the node says of itself
    bool measured = false;       // `speed` was measured; else it is assumed
    bool done = false;  // its node stays reserved until the next group is formed or the run has ended
    comm::control::Outcome outcome = comm::control::Outcome::Ok;
  };
  // A plan that was requested.
  struct Planning {
    enum class Purpose : uint8_t { kStart, kGain, kGoOn };
    uint64_t number = 0;  // of the request
    Purpose purpose = Purpose::kStart;
    std::vector<Member> nodes;  // in the order of the plan
    // For kGain: the slowest member, its seconds a step, how many times longer than planned that is (0: it is
    // not slow, but other nodes could help), and how long the run would still take.
    size_t slowest = 0;
    double slowest_seconds = 0, slower = 0, seconds_left = 0;
  };
  // A new group is wanted although the present one works: its members stop, with a snapshot.
  struct Regroup {
    enum class Reason : uint8_t { kSlow, kHelp, kLeave };
    Reason reason = Reason::kSlow;
    std::vector<Member> nodes;  // of the next group; empty: whichever are there then
    std::string why;
    std::string slow_node;
    double slower = 0;  // than planned
    uint64_t moved_modelets = 0;
    double gain = 0;  // share of the computing time of a step that the new plan saves
    double since = 0;
  };

  // ---- what happens to it

  // How many nodes the run would take from a pool of at most `max_nodes` nodes of which `present` are there, and
  // how many it needs at least, to start or to continue.
  size_t wanted_nodes(size_t max_nodes, size_t present) const;
  size_t least_nodes() const;
  // Whether it waits for nodes that work for others or that may still join.
  bool is_waiting() const {
    return state == comm::control::RunState::Queued || state == comm::control::RunState::Waiting;
  }
  // Requests a plan with free nodes. There must be wanted_nodes() of them.
  void place(Pool& pool);
  void planned(Pool& pool, const Planned& answer);
  void prepared(Pool& pool, Member& member, const comm::control::PreparedT& message);
  // `text` is what watchers get of the event.
  void reported(Pool& pool, uint64_t node, const comm::control::RunEventT& event, std::string text);
  bool has_heard(uint64_t agent, uint64_t number) const;  // whether that event has arrived already
  void member_done(Pool& pool, Member& member, const comm::control::RunDoneT& message);
  void node_gone(Pool& pool, uint64_t node, const std::string& name, const std::string& why);
  // The member lives, but does not work for the run any more.
  void lost_its_part(Pool& pool, Member& member);
  // A node of its group, or of the plan that is being made, was drained or wishes to leave.
  void node_unwilling(Pool& pool, uint64_t node, const std::string& why);
  // `by_step`: the steps that `by` has done.
  void member_missed(Pool& pool, const std::string& by, uint64_t by_step, const Member& missed,
                     const std::string& why);
  void member_found(Pool& pool, const std::string& by, const Member& member);
  // Returns false if the report says nothing new about a stable snapshot, or is not of the present group.
  bool snapshot_held(Pool& pool, uint32_t rank, const comm::Snapshot& files);
  void member_returned(Pool& pool, Member& member, uint64_t node);
  // Sends the member again what may have been lost with a connection or with a former scheduler.
  void tell_again(Pool& pool, const Member& member) const;
  // The scheduler was restarted, and has waited long enough for the members to come back.
  void judge(Pool& pool);
  void asked_to_stop(Pool& pool);
  void time_passed(Pool& pool);
  void fail(Pool& pool, const std::string& why, bool by_user = false);

  Member* member(uint64_t node);
  bool needs_files_of(const Pool& pool, const std::string& node) const;  // to form its group, from this node
  bool has_last_files(const Pool& pool) const;
  // The addresses of its data and of its stable snapshots, also if they are not in the store.
  std::set<std::string> stored_data() const;
  std::set<std::string> known_data() const;  // and of its unfinished snapshots
  comm::control::RunStatusT status(double now) const;
  void add_watcher(Pool& pool, const std::string& peer, const std::string& key);
  void remove_watcher(Pool& pool, const std::string& peer);
  void tell_watchers(Pool& pool) const;
  Holding holding() const;
  void keep_event(Pool& pool, RunEventRecord event);
  void forget_beginning();
  // Of its log only the end is kept from now on.
  void shorten_log(Pool& pool);
  comm::control::RunEventT event_message(const RunEventRecord& event) const;

  // ---- what it is

  uint64_t id = 0;
  std::string submitter;  // name of the key that submitted it; empty without keys
  comm::control::SubmitT submit;
  Experiment experiment;
  DataShape shape;
  std::vector<std::string> resume_files;  // addresses in the store of what it continues from
  comm::control::RunState state = comm::control::RunState::Queued;
  std::string detail;
  bool user_error = false;  // it failed because of something that the user can correct
  uint32_t epoch = 0;
  std::vector<Member> members;
  std::vector<uint32_t> owner;  // [modelets] -> rank
  std::vector<Member> spare;    // nodes to which the plan gave no modelets
  std::optional<Planning> planning;
  std::optional<Regroup> regroup;
  Snapshots snapshots;
  Balance balance;
  size_t began_with = 0;  // number of nodes at its first start
  uint32_t replans = 0, recoveries = 0;
  uint64_t recovered_from = 0;  // step from which it last recovered
  uint32_t attempts = 0;        // recoveries from that step
  double rests_until = 0;       // when the next group may be formed; 0: at once
  std::string fewer;            // why it goes on with fewer nodes than it began with; empty: it has as many
  std::string losses;           // which nodes it lost since its last group was formed, and why
  uint64_t step = 0;
  std::string submitted_at;                         // UTC
  double submitted = 0, stop_asked = 0, ended = 0;  // seconds of the scheduler's clock
  double prepare_began = 0, prepare_seconds = 0;    // of the last start
  double last_news = 0;                             // when a member ended or reported files
  Misses misses;                                    // of the present group
  std::set<std::string> has_worked;                 // names of nodes that were in a group that ran
  struct LeftOut {
    double until = 0;
    std::string why;
  };
  std::map<std::string, LeftOut> left_out;  // names of nodes with which no group is formed until then
  std::map<std::string, uint32_t>
      doubts;  // how often each was left out although nothing says that it is at fault
  std::map<std::string, uint32_t> failures;  // of nodes that got ready in vain, one group after the other
  double files_missing_since = 0;      // since when no node that is there has some file; 0: all can be had
  std::set<uint64_t> no_help;          // nodes that were already considered as help
  std::vector<uint64_t> too_few;       // nodes on which the run could not be placed
  std::deque<RunEventRecord> events;   // the last ones
  uint64_t event_bytes = 0;            // of these
  bool has_short_log = false;          // shorten_log() was called
  bool is_submission_written = false;  // the ledger has `submit`
  Holding counted;                     // what the account of its key says (Pool::count)
  uint64_t last_event = 0;             // number of the last one
  std::map<uint64_t, uint64_t> heard;  // incarnation of an agent -> number of its last event
  std::map<std::string, std::string> watchers;  // peer -> its key

 private:
  std::vector<uint64_t> nodes_that_may_join(const Pool& pool) const;
  std::vector<uint64_t> choose(const Pool& pool, std::vector<uint64_t> free, size_t wanted) const;
  size_t most_nodes(size_t max_nodes) const;
  void ask_for_plan(Pool& pool, Planning wanted);
  void forget_planning(Pool& pool);
  void end_planning(Pool& pool);
  void form_planned(Pool& pool, std::vector<Member> chosen, const Plan& plan);
  void form_group(Pool& pool, std::vector<Member> group);
  void admit_members(Pool& pool, const comm::control::PrepareT& prepare) const;
  bool send_prepare(Pool& pool, const std::vector<Member>& former);
  struct Unreachable {
    const Member* member = nullptr;  // the one to do without
    std::string why;
  };
  std::optional<Unreachable> unreachable() const;
  void start_if_prepared(Pool& pool);
  void observe(Pool& pool, const comm::control::RunEventT& progress);
  void look_for_gain(Pool& pool, const std::vector<double>& measured, double seconds_left);
  void look_for_help(Pool& pool, double seconds_left);
  void stop_for_gain(Pool& pool, Planning wanted, const Plan& plan);
  void stop_to_regroup(Pool& pool, Regroup wanted);
  void recover(Pool& pool, const std::string& why, bool counts = true);
  void not_prepared(Pool& pool, const Member& member, const std::string& why, bool by_user = false);
  bool leave_out(Pool& pool, const std::string& node, const std::string& why);
  bool leave_out(Pool& pool, const std::string& node, const std::string& why, double seconds);
  void leave_out_unreachable(Pool& pool);
  std::string left_out_text(const Pool& pool) const;
  bool is_left_out(const Pool& pool, const std::string& node) const;
  bool can_do_without(const Pool& pool, const std::string& node) const;
  bool seems_stuck() const;
  bool has_run() const { return !has_worked.empty() || snapshots.stable_step() > 0; }
  void go_on(Pool& pool);
  bool fill_vacancies(Pool& pool);
  void plan_with_whoever_is_there(Pool& pool);
  void wait_for_nodes(Pool& pool, const std::string& why);
  bool snapshot_is_at_hand(Pool& pool);
  bool can_be_moved(const Pool& pool) const;
  void settle(Pool& pool);
  void publish_replanned(Pool& pool);
  void stop_to_end(Pool& pool, const std::string& why);
  void end_with_files(Pool& pool, bool all_ok);
  void member_lost(Pool& pool, Member& member, const std::string& why);
  void stopped_by_loss(Pool& pool, const std::string& why);
  std::string where_it_stands() const;
  void ask_members_to_stop(Pool& pool) const;
  void abort_members(Pool& pool, const std::string& reason) const;
  void release_others(Pool& pool, const std::vector<Member>& group, const std::string& reason) const;
  void forget_old_events(Pool& pool);
  void publish(Pool& pool, nlohmann::json event);
  // `agent` is the incarnation of the agent that reports it. `number` is the number that the agent gave it; 0: none.
  void pass_on(Pool& pool, std::string event, uint64_t agent, uint64_t number);
  void set_state(Pool& pool, comm::control::RunState to, const std::string& why);
};

}  // namespace modelet::scheduler
