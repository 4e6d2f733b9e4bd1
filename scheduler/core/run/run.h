// Run: a submission on its way from the queue to its end. It decides what happens next; what it consists of are parts
// with a state of their own:
//   Group       the nodes that work for it, and their modelets
//   Planning    the plan that it waits for
//   Snapshots   from which it can continue
//   Journal     its events, and who watches
//   Balance, Misses, Exclusions, Attempts   slow nodes, nodes out of reach, nodes that it does without, recoveries
// Methods get the Pool as an argument; they change there which nodes work for the run, and add messages and lines to
// log.
//
// A run of towers consists of tasks (docs/decisions/0035-tasks.md). It never has a group. Each task is a run of its own,
// with all that a run has: the experiment of the tower, nodes, snapshots, a journal. The run of towers counts their
// results and ends with them.
//
// Every change of a group is the same operation (go_on): the group of the next epoch is formed and continues
// from saved state. That state is one of these:
//   - the newest stable snapshot;
//   - the snapshot of the last step even if it is not stable, provided that all ranks have reported its files
//     and none of them was lost since.
//
// Files:
//   run.cc       what the nodes report, and the end of the run
//   forming.cc   plans, and the start of a group
//   replan.cc    slow nodes, and nodes that could help
//   recovery.cc  losses, nodes that leave, nodes that cannot work for the run, snapshots
//   tasks.cc     runs that consist of tasks, and the runs of their tasks
//   run_record.cc  the record of a run
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/experiment/experiment.h"
#include "comm/control/control.h"
#include "scheduler/core/run/group.h"
#include "scheduler/core/run/journal.h"
#include "scheduler/core/run/planning.h"
#include "scheduler/core/values/accounts.h"
#include "scheduler/core/values/attempts.h"
#include "scheduler/core/values/balance.h"
#include "scheduler/core/values/exclusions.h"
#include "scheduler/core/values/misses.h"
#include "scheduler/core/values/snapshots.h"
#include "scheduler/ledger/records.h"

namespace modelet::scheduler {

struct Pool;

bool has_ended(comm::control::RunState state);
const char* state_name(comm::control::RunState state);  // "queued", ...

// What follows from a submission.
struct Submission {
  Experiment experiment;
  DataShape shape;
  // Of one network or of each task, or empty: what it continues from. Its files are in the store; without files: it begins.
  std::vector<comm::Snapshot> resume;
};

class Run {
 public:
  Run(uint64_t id, std::string submitter, comm::control::SubmitT submit, std::string submitted_at);
  // As record() wrote it down (run_record.cc). The members are away (`node` is 0). Throws FormatError that says what is
  // wrong.
  explicit Run(const RunRecord& record);
  // A task of `parent`. `from`: the snapshot from which it begins, with its files in the store.
  Run(uint64_t id, const Run& parent, uint32_t task, std::optional<comm::Snapshot> from = {});
  // Before its first event: what follows from the submission, and the time, which the clock of this process says.
  void accept(Submission submission);
  void accept_task(const Run& parent);  // instead, for a task
  // What its tasks continue from (Submission::resume); from now on they know it themselves.
  std::vector<comm::Snapshot> take_starts_of_tasks() { return std::exchange(submission_.resume, {}); }
  void begin(double now);

  // ---- what happens to it

  // Requests a plan with free nodes. There must be wanted_nodes() of them.
  void place(Pool& pool);
  void explain_wait(const std::string& why);
  // Why too few nodes, or with `free` too few free ones, have its private data. Empty: there are enough, or its data is
  // not private.
  std::string lacks_owners(const Pool& pool, bool free) const;
  void set_queue_place(uint32_t place) { queue_place_ = place; }  // 0: it does not wait
  void planned(Pool& pool, const Planned& answer);
  // Of a member of its group.
  void prepared(Pool& pool, const Member& member, const comm::control::PreparedT& message);
  // `text` is what watchers get of the event.
  void reported(Pool& pool, uint64_t node, const comm::control::RunEventT& event, std::string text);
  void stepped(const std::string& node, uint64_t step);
  void member_done(Pool& pool, const Member& member, const comm::control::RunDoneT& message);
  void node_gone(Pool& pool, uint64_t node, const std::string& name, const std::string& why);
  void holder_gone(Pool& pool, const std::string& node);  // whatever it works for
  // The member lives, but does not work for the run any more.
  void lost_its_part(Pool& pool, const Member& member);
  // A node of its group, or of the plan that is being made, was drained or asks to leave.
  void node_unwilling(Pool& pool, uint64_t node, const std::string& why);
  // `by_step`: the steps that `by` has done.
  void member_missed(Pool& pool, const std::string& by, uint64_t by_step, const Member& missed,
                     const std::string& why);
  void member_found(Pool& pool, const std::string& by, const Member& member);
  // Returns false if the report says nothing new about a stable snapshot, or is not of the present group.
  bool snapshot_held(Pool& pool, uint32_t rank, const comm::Snapshot& files);
  void member_returned(Pool& pool, const Member& member, uint64_t node);
  // Sends the member again what may have been lost with a connection or with a former scheduler.
  void resend(Pool& pool, const Member& member) const;
  // The scheduler was restarted, and has waited long enough for the members to come back.
  void judge(Pool& pool);
  void asked_to_stop(Pool& pool);
  std::string trace(Pool& pool, uint32_t steps) const;  // TraceRun; returns why it cannot, or nothing
  void time_passed(Pool& pool);
  // Of a run of tasks: counts results, gives up superfluous copies, and ends when its tasks have. `copies`: [task] ->
  // its runs, in the order of their numbers.
  void look_after(Pool& pool, const std::vector<std::vector<Run*>>& copies);
  // Of a task: it ends now, and what it has done is of no use.
  void give_up(Pool& pool, const std::string& why);
  void restore_event(Pool& pool, const RunEventRecord& event);
  void add_watcher(Pool& pool, const std::string& peer, const std::string& key) {
    journal_.add_watcher(pool, peer, key);
  }
  void remove_watcher(Pool& pool, const std::string& peer) { journal_.remove_watcher(pool, peer); }
  void notify_watchers(Pool& pool) const;
  void shorten_log(Pool& pool);
  void count(Pool& pool);  // anew what its key holds of the scheduler
  // What outlives the scheduler (scheduler/ledger/records.h): the submission, if no record of this run had it before, the
  // state, the group and the stable snapshots. Events have records of their own. Watchers ask again.
  RunRecord record(double now);

  // ---- what it is

  uint64_t id() const { return id_; }
  const std::string& submitter() const { return submitter_; }
  uint64_t parent() const { return parent_; }  // 0: this run is no task
  uint32_t task() const { return task_; }
  uint64_t whole() const { return parent_ == 0 ? id_ : parent_; }
  // Of a run of tasks: [task] -> the run whose files are the result; 0: none yet. Empty: it is one network.
  const std::vector<uint64_t>& results() const { return results_; }
  // Whether nodes work for it, or will when it is planned.
  bool has_nodes() const;
  // How many nodes may work for its tasks at once.
  size_t most_nodes_at_once() const;  // 0: any number
  // As its nodes have reported; negative: not known.
  double seconds_left(double now) const;
  // Whether a second copy can be expected to be of use: it has long to go compared with the time of a start.
  bool is_worth_a_copy(double now) const;
  // The snapshot from which a copy begins; nothing: there is none in the store.
  std::optional<comm::Snapshot> start_of_copy() const;
  const comm::control::SubmitT& submit() const { return submit_; }
  comm::control::RunState state() const { return state_; }
  const std::string& detail() const { return detail_; }
  uint64_t step() const { return step_; }
  uint32_t epoch() const { return group_.epoch(); }
  const Group& group() const { return group_; }
  const Planning& planning() const { return planning_; }
  const Snapshots& snapshots() const { return snapshots_; }
  const Journal& journal() const { return journal_; }
  // Which share of the model each member of its group has, in the order of ranks; empty: nobody works for it.
  struct Share {
    std::string node;
    uint64_t modelets = 0, bytes = 0;
  };
  std::vector<Share> placement() const;
  const Holding& counted() const { return counted_; }
  // How many nodes the run would take from a pool of at most `max_nodes` nodes of which `present` are there, and
  // how many it needs at least, to start or to continue.
  size_t wanted_nodes(size_t max_nodes, size_t present) const;
  size_t least_nodes() const;
  // Whether it waits for nodes that work for others or that may still join.
  bool is_waiting() const {
    return results_.empty() &&
           (state_ == comm::control::RunState::Queued || state_ == comm::control::RunState::Waiting);
  }
  bool needs_files_of(const Pool& pool, const std::string& node) const;  // to form its group, from this node
  // The addresses of its data and of its stable snapshots, also if they are not in the store.
  std::set<std::string> stored_data() const;
  std::set<std::string> known_data() const;  // and of its unfinished snapshots
  comm::control::RunStatusT status(double now) const;
  Holding holding() const;

 private:
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
  using Purpose = Planning::Purpose;
  using Reason = Regroup::Reason;

  const std::vector<Member>& members() const { return group_.members(); }
  const Member* member(uint64_t node) const { return group_.member(node); }
  uint32_t replicas() const { return submission_.experiment.cluster.replicas; }
  // As many nodes come and go together: one of each replica. An owner of private data comes and goes alone.
  size_t together() const { return is_private(submission_.experiment) ? 1 : replicas(); }
  Experiment experiment_for(size_t nodes) const;
  bool may_use(const Pool& pool, uint64_t node) const;
  std::vector<uint64_t> free_nodes(const Pool& pool) const;  // that it may use
  std::vector<uint64_t> nodes_that_may_join(const Pool& pool) const;
  std::vector<uint64_t> choose(const Pool& pool, std::vector<uint64_t> free, size_t wanted) const;
  size_t most_nodes(size_t max_nodes) const;
  void ask_for_plan(Pool& pool, Planning::Wanted wanted);
  void form_group(Pool& pool, std::vector<Member> next);
  void admit_members(Pool& pool, const comm::control::PrepareT& prepare) const;
  bool send_prepare(Pool& pool, const std::vector<Member>& former);
  void start_if_prepared(Pool& pool);
  void observe(Pool& pool, const comm::control::RunEventT& progress);
  void note_progress(const std::string& event);
  void look_for_gain(Pool& pool, const std::vector<double>& measured, double seconds_left);
  void look_for_help(Pool& pool, double seconds_left);
  void take_owners_back(Pool& pool, double seconds_left);
  void stop_for_gain(Pool& pool, Planning::Wanted wanted, const Plan& plan);
  void stop_to_regroup(Pool& pool, Regroup wanted);
  void recover(Pool& pool, const std::string& why, bool counts = true);
  void not_prepared(Pool& pool, const Member& member, const std::string& why, bool by_user = false);
  bool leave_out(Pool& pool, const std::string& node, const std::string& why);
  bool leave_out(Pool& pool, const std::string& node, const std::string& why, double seconds);
  void leave_out_unreachable(Pool& pool);
  bool can_do_without(const Pool& pool, const std::string& node) const;
  bool has_run() const {
    return group_.has_ever_been_ready() || snapshots_.has_own() || sibling_has_run_;
  }
  bool has_last_files(const Pool& pool) const;
  void go_on(Pool& pool);
  bool fill_vacancies(Pool& pool);
  void plan_with_whoever_is_there(Pool& pool);
  void wait_for_nodes(Pool& pool, const std::string& why);
  bool snapshot_is_at_hand(Pool& pool);
  bool can_be_moved(const Pool& pool) const;
  void after_group(Pool& pool);
  void publish_replanned(Pool& pool);
  void stop_to_end(Pool& pool, const std::string& why);
  void end_with_files(Pool& pool, bool all_ok);
  void member_lost(Pool& pool, const Member& member, const std::string& why);
  void stopped_by_loss(Pool& pool, const std::string& why);
  std::string where_it_stands() const;
  void forget_old_events(Pool& pool);
  void publish(Pool& pool, nlohmann::json event);
  // `agent` is the incarnation of the agent that reports it. `number` is the number that the agent gave it; 0: none.
  void pass_on(Pool& pool, std::string event, uint64_t agent, uint64_t number);
  void set_state(Pool& pool, comm::control::RunState to, const std::string& why);
  void accept_result(Pool& pool, const Run& copy);
  void publish_start(Pool& pool, const std::vector<std::vector<Run*>>& tasks);
  void publish_task(Pool& pool, const Run& copy, const char* what);
  void tally(const Pool& pool, const std::vector<std::vector<Run*>>& copies);
  std::string tasks_text() const;
  void fail(Pool& pool, const std::string& why, bool by_user = false);

  uint64_t id_ = 0;
  std::string submitter_;  // name of the key that submitted it; empty without keys
  comm::control::SubmitT submit_;
  Submission submission_;
  std::string submitted_at_;                           // UTC
  double submitted_ = 0, stop_asked_ = 0, ended_ = 0;  // seconds of the scheduler's clock
  comm::control::RunState state_ = comm::control::RunState::Queued;
  std::string detail_;
  bool user_error_ = false;  // it failed because of something that the user can correct
  uint64_t step_ = 0;

  std::set<std::string> owners_;  // names of the nodes with which it began, if its data is private
  uint32_t queue_place_ = 0;
  uint64_t parent_ = 0;
  uint32_t task_ = 0;
  bool sibling_has_run_ = false;  // a task of the same run, so its experiment and its data are sound
  double began_ = 0;              // when its first group was formed by this scheduler; 0: it was not
  struct Progress {               // as its nodes have reported last
    uint64_t steps = 0;
    double loss = 0, samples_per_second = 0, bytes_per_step = 0;
  } progress_;
  double stable_at_ = 0;            // when its newest stable snapshot became stable
  uint64_t repeated_steps_ = 0;     // done again because of recoveries
  double left_ = -1, left_at_ = 0;  // seconds until it ends, as reported at that time; negative: not known
  std::vector<uint64_t> results_;
  struct Tally {  // of its tasks, as look_after() saw them last
    uint32_t done = 0, at_work = 0;
    double seconds_left = 0;  // 0: not known
    std::vector<std::string> nodes;
  } tally_;

  Group group_;
  Planning planning_;
  std::optional<Regroup> regroup_;
  Snapshots snapshots_;
  Journal journal_;
  Balance balance_;  // of the present group, like the misses
  Misses misses_;
  Exclusions exclusions_;
  Attempts attempts_;

  size_t began_with_ = 0;  // number of nodes at its first start
  uint32_t replans_ = 0, recoveries_ = 0;
  double rests_until_ = 0;              // when the next group may be formed; 0: at once
  std::string fewer_;                   // why it goes on with fewer; empty: it has as many
  std::string losses_;                  // which nodes it lost since its last group was formed, and why
  double last_news_ = 0;                // when a member ended or reported files
  double files_missing_since_ = 0;      // since when no node that is there has some file; 0: all can be had
  std::set<uint64_t> no_help_;          // nodes that were already considered as help
  std::vector<uint64_t> too_few_;       // nodes on which the run could not be placed
  Holding counted_;                     // what the account of its key says
  bool is_submission_written_ = false;  // the ledger has `submit_`
};

}  // namespace modelet::scheduler
