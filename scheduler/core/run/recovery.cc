// Losses of nodes, nodes that leave, and the snapshots from which a run continues with another group.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/rng.h"
#include "base/text/printable.h"
#include "scheduler/core/run/pool.h"
#include "scheduler/core/run/run.h"
#include "scheduler/core/values/text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;
using msg::Outcome;
using msg::RunState;

constexpr size_t kLongestLosses = 1024;  // bytes of text

}  // namespace

// ---- what happens to its nodes

void Run::member_lost(Pool& pool, const Member& lost, const std::string& why) {
  group_.set_lost(lost);
  pool.changed_runs.insert(id_);
  if (state_ == RunState::Stopping) return stopped_by_loss(pool, why);
  // The member had ended its part, and its files are where they must be, so nothing is needed from it.
  if (lost.done && lost.outcome == Outcome::Ok && state_ == RunState::Running && has_last_files(pool))
    return after_group(pool);
  recover(pool, why);
}

// The user wants the run to end, so the newest snapshot has to do.
void Run::stopped_by_loss(Pool& pool, const std::string& why) {
  group_.abort(pool, id_, why);
  set_state(pool, RunState::Stopped, fmt::format("{}; {}", why, where_it_stands()));
}

void Run::lost_its_part(Pool& pool, const Member& idle) {
  const std::string why = fmt::format("node '{}' lost its part of the run at step {}", idle.name, step_);
  if (!has_ended(state_) && !idle.done) member_lost(pool, idle, why);
}

void Run::node_unwilling(Pool& pool, uint64_t node, const std::string& why) {
  if (has_ended(state_)) return;
  if (planning_.includes(node)) {
    const bool goes_on = planning_.is_for(Purpose::kGoOn);
    planning_.forget(pool);
    if (goes_on) return go_on(pool);
  }
  if (member(node) == nullptr || group_.is_one_done()) return;
  if (state_ == RunState::Forming) {
    set_state(pool, RunState::Recovering, why);
    go_on(pool);
  } else if (state_ == RunState::Running && !regroup_) {
    stop_to_regroup(pool, {.reason = Reason::kLeave, .nodes = {}, .why = why, .slow_node = {}});
  }
}

// A member cannot reach another one. If the connection of the missed member is gone, sending to it shows this
// (PeerGone), and it is lost at once. If not, the members may reach each other again; time_passed() decides.
void Run::member_missed(Pool& pool, const std::string& by, uint64_t by_step, const Member& missed,
                        const std::string& why) {
  if (state_ != RunState::Running && state_ != RunState::Stopping) return;
  if (misses_.empty())
    pool.log(fmt::format("run {}: node '{}' misses node '{}': {}", id_, by, missed.name, kept_text(why)));
  misses_.add(pool.now, missed.name, by, by_step, pool.options.dead_after);
  Node* node = pool.node(missed.node);
  if (node == nullptr) return;
  node->missed = pool.now;
  pool.send(node->peer, msg::AliveT{});
}

void Run::member_found(Pool& pool, const std::string& by, const Member& found) {
  if (!misses_.remove(pool.now, found.name, by)) return;
  if (Node* node = pool.node(found.node)) node->missed = 0;
  pool.log(fmt::format("run {}: node '{}' is not missed any more", id_, found.name));
}

// ---- nodes that cannot work for the run

// A member could not get ready. If the run has worked before, the fault is local to this node, for example its
// owner does not lend the data, or it has another release. Before any group has worked, the reason may be the
// experiment.
void Run::not_prepared(Pool& pool, const Member& member, const std::string& why, bool by_user) {
  if (!has_run()) return fail(pool, why, by_user);
  const uint64_t node = member.node;
  const bool is_news = leave_out(pool, member.name, why);
  if (state_ != RunState::Recovering) return recover(pool, why, !is_news);
  if (!planning_.includes(node)) return;
  planning_.forget(pool);
  go_on(pool);
}

// True if the node had not been left out before.
bool Run::leave_out(Pool& pool, const std::string& node, const std::string& why) {
  return leave_out(pool, node, why, pool.options.left_out);
}

bool Run::leave_out(Pool& pool, const std::string& node, const std::string& why, double seconds) {
  pool.log(fmt::format("run {}: does without node '{}' for {:.0f} s: {}", id_, node, seconds, why));
  return exclusions_.add(node, pool.now + seconds, why);
}

// The connection between two nodes may be cut for longer. If a node and most of the others do not reach each
// other, that node is left out. Otherwise nobody can know whose fault it is, or whether somebody lies. Those
// concerned then take turns, each time for longer, so that no accusation costs the accused more than the accuser.
void Run::leave_out_unreachable(Pool& pool) {
  constexpr double kFirstTurn = 0.1;  // of the time for which a node is left out that is known to be at fault
  const std::map<std::string, std::set<std::string>> apart = misses_.apart();
  const auto is_at_fault = [&](const std::string& name) {
    const size_t others = apart.at(name).size();
    return others >= 2 && 2 * others > members().size() - 1;
  };
  const auto turn = [&](const Member& each) {
    const uint64_t lot = mix64(pool.pool_id ^ mix64(id_ ^ mix64(epoch() ^ mix64(each.node))));
    return std::tuple(!is_at_fault(each.name), exclusions_.doubts(each.name), lot);
  };
  const Member* next = nullptr;
  for (const Member& each : members())
    if (apart.contains(each.name) && can_do_without(pool, each.name) &&
        (next == nullptr || turn(each) < turn(*next)))
      next = &each;
  if (next == nullptr) return;
  const double longest = pool.options.left_out;
  if (is_at_fault(next->name)) {
    leave_out(pool, next->name, "it and most others do not reach each other", longest);
  } else {
    const double seconds =
        std::min(longest, longest * kFirstTurn * std::exp2(exclusions_.doubts(next->name)));
    exclusions_.doubt(next->name);
    leave_out(pool, next->name, "it and another node do not reach each other; they take turns", seconds);
  }
}

// Whether enough other nodes are there.
bool Run::can_do_without(const Pool& pool, const std::string& node) const {
  const auto could_go_on = [&](const Member& each) {
    const auto there = pool.nodes.find(each.node);
    return each.name != node && there != pool.nodes.end() && there->second.is_willing() &&
           !exclusions_.has(each.name, pool.now);
  };
  const auto members_left = static_cast<size_t>(std::ranges::count_if(members(), could_go_on));
  return members_left + nodes_that_may_join(pool).size() >= least_nodes();
}

// ---- snapshots

bool Run::snapshot_held(Pool& pool, uint32_t rank, const comm::Snapshot& files) {
  const bool works = state_ == RunState::Running || state_ == RunState::Stopping;
  const bool has_more = snapshots_.add_holders(files);
  const bool is_new = works && snapshots_.add(epoch(), static_cast<uint32_t>(members().size()), rank, files,
                                              most_snapshot_files(group_.owner().size()));
  if (!has_more && !is_new) return false;
  // Agents do not repeat a report that was confirmed, so the record must have it. Reports about other
  // unfinished snapshots need no record: a later snapshot replaces them.
  if (has_more || files.keep) pool.changed_runs.insert(id_);
  last_news_ = pool.now;
  if (has_ended(state_)) return true;
  // Count the places where files can lie. If there are at least two, each file needs two holders.
  uint32_t places = pool.options.data_port != 0 ? 1 : 0;
  for (const Member& each : members()) {
    // By name: a member that was lost and has registered again has its files, but is no member's node now.
    const auto holds = [&](const auto& entry) {
      return entry.second.info.name == each.name && !entry.second.info.holder_endpoint.empty();
    };
    const bool may_come_back = pool.node(each.node) == nullptr && pool.awaits_members;
    if (may_come_back || std::ranges::any_of(pool.nodes, holds)) ++places;
  }
  if (const auto stable = snapshots_.advance_stable(std::clamp(places, 1U, 2U), pool.there())) {
    stable_at_ = pool.now;
    pool.changed_runs.insert(id_);
    pool.log(fmt::format("run {}: the files of step {} are safe", id_, *stable));
    for (const Member& each : members())
      if (const Node* node = pool.node(each.node))
        pool.send(node->peer, msg::StableT{{}, id_, epoch(), *stable});
  }
  after_group(pool);
  return true;
}

// Whether the next group can continue from the last step although its snapshot is not stable: the nodes stay,
// and have all files of it. The files get their second holders while the next group trains. If a node is lost
// before that, the stable snapshot is still there.
bool Run::can_be_moved(const Pool& pool) const {
  if (!regroup_ || regroup_->reason == Reason::kLeave) return false;
  const comm::Snapshot* last = snapshots_.newest_complete(pool.there());
  return last != nullptr && last->step >= step_;
}

// While the run waits for nodes, it needs only nodes that have a file which nobody has who stays. Several that leave
// together bring their files to the store first; without one they wait for others as long as they may.
bool Run::needs_files_of(const Pool& pool, const std::string& node) const {
  const bool is_forming = state_ == RunState::Forming || state_ == RunState::Recovering;
  if ((!is_forming && state_ != RunState::Waiting) || snapshots_.newest() == nullptr) return false;
  return std::ranges::any_of(snapshots_.newest()->files, [&](const comm::SnapshotFile& file) {
    if (std::ranges::find(file.holders, node) == file.holders.end()) return false;
    return is_forming || std::ranges::none_of(file.holders, [&](const std::string& holder) {
             return holder != node && pool.keeps(holder, stable_at_);
           });
  });
}

// Whether the files of the last step are stable and, if there is a store, are all in it, where the user can
// fetch them.
bool Run::has_last_files(const Pool& pool) const {
  return snapshots_.newest() != nullptr && snapshots_.stable_step() >= step_ &&
         (pool.options.data_port == 0 || snapshots_.newest_lies_with(""));
}

// An older snapshot, which lies in the store, is the last resort: nodes that were silent for some seconds
// often come back, and the work of a whole epoch may have to be repeated.
bool Run::snapshot_is_at_hand(Pool& pool) {
  const comm::Snapshot* best = snapshots_.newest_at_hand(pool.there());
  if (best == snapshots_.newest() ||
      (best != nullptr && snapshots_.newest_complete(pool.there()) != nullptr)) {
    files_missing_since_ = 0;
    return true;
  }
  if (files_missing_since_ == 0) files_missing_since_ = pool.now;
  if (best != nullptr && pool.now - files_missing_since_ >= pool.options.older_after) return true;
  const auto missing = snapshots_.missing(pool.there());
  wait_for_nodes(
      pool, missing ? fmt::format("waits for node '{}': nobody else has {} of step {}", missing->holder,
                                  missing->file, snapshots_.stable_step())
                    : fmt::format("nobody is known to have all files of step {}", snapshots_.stable_step()));
  return false;
}

// ---- the next group

void Run::recover(Pool& pool, const std::string& why, bool counts) {
  planning_.forget(pool);
  regroup_.reset();
  attempts_.recover_from(snapshots_.stable_step());
  // Further losses before the next group is formed belong to the same attempt.
  if (state_ != RunState::Recovering && counts && attempts_.add() > pool.options.most_recoveries)
    return fail(pool,
                fmt::format("its group was formed {} times from step {} without getting on; at last: {}",
                            attempts_.count(), attempts_.step(), why));
  if (attempts_.count() > 1) snapshots_.drop_unfinished();
  ++recoveries_;
  losses_ = losses_.empty() || losses_.size() > kLongestLosses ? why : losses_ + "; " + why;
  set_state(pool, RunState::Recovering, why);
  rests_until_ = group_.prepare_began() + attempts_.rest();
  if (pool.now < rests_until_) return;
  rests_until_ = 0;
  go_on(pool);
}

// Chooses the nodes of the next group. There are three ways, tried in this order:
//   1. the nodes of the plan that was the reason for the change;
//   2. the same placement with free nodes in the places of the lost ones, which computes the same bits;
//   3. a new plan with whichever nodes are there.
void Run::go_on(Pool& pool) {
  Planning::Wanted next{.purpose = Purpose::kGoOn};
  if (regroup_)
    for (size_t newcomers = pool.nodes_to_spare(id_); const Member& wanted : regroup_->nodes) {
      const Node* node = pool.node(wanted.node);
      if (node == nullptr || !node->is_willing() || exclusions_.has(wanted.name, pool.now)) continue;
      const bool stays = member(wanted.node) != nullptr;
      if (!stays && (!node->is_free() || newcomers == 0)) continue;
      if (!stays) --newcomers;
      next.nodes.push_back(wanted);
    }
  // Replicas have the same number of nodes each. Newcomers come last.
  while (next.nodes.size() % together() != 0 && member(next.nodes.back().node) == nullptr)
    next.nodes.pop_back();
  if (next.nodes.size() >= least_nodes() && next.nodes.size() % together() == 0) {
    detail_ = "its modelets are placed anew";
    return ask_for_plan(pool, std::move(next));
  }
  if (!snapshot_is_at_hand(pool) || fill_vacancies(pool)) return;
  plan_with_whoever_is_there(pool);
}

std::vector<uint64_t> Run::nodes_that_may_join(const Pool& pool) const {
  std::vector<uint64_t> nodes = free_nodes(pool);
  std::erase_if(nodes,
                [&](uint64_t node) { return exclusions_.has(pool.nodes.at(node).info.name, pool.now); });
  return nodes;
}

bool Run::fill_vacancies(Pool& pool) {
  std::vector<Member> group = members();
  std::vector<uint64_t> free = nodes_that_may_join(pool);
  const auto rate = [&](uint64_t node) { return pool.nodes.at(node).info.gflops; };
  std::ranges::stable_sort(free, [&](uint64_t a, uint64_t b) { return rate(a) > rate(b); });
  const auto take = [&](Member& vacancy, const auto& fits) {
    const auto found = std::ranges::find_if(free, [&](uint64_t id_of_node) {
      const Node& node = pool.nodes.at(id_of_node);
      return node.info.memory_bytes >= vacancy.memory_bytes && fits(node.info.name);
    });
    if (found == free.end()) return false;
    vacancy.node = *found;
    vacancy.speed = 1;
    vacancy.measured = false;
    free.erase(found);
    return true;
  };
  std::vector<Member*> vacant;
  for (Member& each : group)
    if (const Node* node = pool.node(each.node);
        node == nullptr || !node->is_willing() || exclusions_.has(each.name, pool.now))
      vacant.push_back(&each);
  // A node that comes back gets its former rank, because it has some of the files.
  std::erase_if(vacant, [&](Member* each) {
    return take(*each, [each](const std::string& name) { return name == each->name; });
  });
  if (is_private(submission_.experiment) && !vacant.empty()) return false;  // no owner takes the place of another
  for (Member* each : vacant)
    if (!take(*each, [](const std::string&) { return true; })) return false;
  if (group.empty()) return false;
  form_group(pool, std::move(group));
  return true;
}

void Run::plan_with_whoever_is_there(Pool& pool) {
  std::vector<uint64_t> there = nodes_that_may_join(pool);
  for (const Member& each : members())
    if (const Node* node = pool.node(each.node);
        node != nullptr && node->is_willing() && !exclusions_.has(each.name, pool.now))
      there.push_back(each.node);
  const size_t least = least_nodes();
  const size_t count = std::min(there.size(), most_nodes(pool.options.max_nodes)) / together() * together();
  if (count < least)
    return wait_for_nodes(pool, fmt::format("waits for {} to go on from step {}, {} free{}",
                                            nodes_text(least), snapshots_.stable_step(),
                                            there.size() == 1 ? "1 is" : fmt::format("{} are", there.size()),
                                            exclusions_.text(pool.now)));
  Planning::Wanted next{.purpose = Purpose::kGoOn};
  for (const uint64_t node : choose(pool, std::move(there), count)) {
    if (const Member* known = member(node))
      next.nodes.push_back(*known);
    else
      next.nodes.push_back({.node = node, .name = pool.nodes.at(node).info.name});
  }
  std::vector<uint64_t> ids;
  for (const Member& each : next.nodes) ids.push_back(each.node);
  std::ranges::sort(ids);
  if (ids == too_few_) return;  // the planner has already failed with these nodes
  detail_ = fmt::format("is placed anew on {}", nodes_text(count));
  ask_for_plan(pool, std::move(next));
}

// No node stays reserved for the run while it waits.
void Run::wait_for_nodes(Pool& pool, const std::string& why) {
  regroup_.reset();
  group_.release_others(pool, id_, {}, "the run waits for nodes");
  group_.set_all_lost();
  if (state_ != RunState::Waiting) return set_state(pool, RunState::Waiting, why);
  detail_ = why;
}

// ---- after a restart of the scheduler

// A member of a group that went on working without a scheduler has registered again.
void Run::member_returned(Pool& pool, const Member& member, uint64_t node) {
  group_.set_returned(member, node);
  pool.nodes.at(node).bind(id_, epoch(), pool.now);
  resend(pool, member);
}

void Run::resend(Pool& pool, const Member& member) const {
  if (state_ != RunState::Running && state_ != RunState::Stopping) return;
  const Node& node = pool.nodes.at(member.node);
  if (!member.done) {
    if (auto start = group_.start(id_)) pool.send(node.peer, std::move(*start));
    if (state_ == RunState::Stopping || regroup_) pool.send(node.peer, msg::StopT{{}, id_, epoch()});
  }
  if (snapshots_.has_own())
    pool.send(node.peer, msg::StableT{{}, id_, epoch(), snapshots_.stable_step()});
}

void Run::judge(Pool& pool) {
  if (has_ended(state_) || is_waiting()) return;
  const auto away = std::ranges::find(members(), uint64_t{0}, &Member::node);
  const bool is_forming = state_ == RunState::Forming || state_ == RunState::Recovering;
  if (away == members().end() && !is_forming) return;
  std::vector<std::string> lost;
  for (const Member& each : members())
    if (each.node == 0) lost.push_back(fmt::format("node '{}'", each.name));
  const std::string why =
      away == members().end()
          ? "the scheduler was restarted while the group was formed"
          : fmt::format("{} did not come back after the scheduler was restarted", fmt::join(lost, ", "));
  if (state_ == RunState::Stopping) return stopped_by_loss(pool, why);
  recover(pool, why);
}

// ---- patience

void Run::time_passed(Pool& pool) {
  if (!results_.empty()) return;  // its tasks have their own patience
  const double grace = pool.options.stop_grace, dead_after = pool.options.dead_after;
  const bool all_done = group_.are_all_done();
  if (all_done && (state_ == RunState::Running || state_ == RunState::Stopping)) return after_group(pool);
  if (state_ == RunState::Stopping && pool.now - stop_asked_ > grace) {
    group_.abort(pool, id_, "the run did not stop in time");
    return set_state(
        pool, RunState::Stopped,
        fmt::format("aborted at step {}: it did not stop within {:.0f} s; nothing was saved after its last "
                    "checkpoint",
                    step_, grace));
  }
  if (state_ == RunState::Recovering && rests_until_ > 0 && pool.now >= rests_until_) {
    rests_until_ = 0;
    return go_on(pool);
  }
  if (files_missing_since_ > 0) {
    const comm::Snapshot* best = snapshots_.newest_at_hand(pool.there());
    if (best == snapshots_.newest())
      files_missing_since_ = 0;
    else if (state_ == RunState::Waiting && best == nullptr &&
             pool.now - files_missing_since_ > pool.options.hold_grace)
      return fail(pool, fmt::format("{}: gone for {:.0f} s", detail_, pool.options.hold_grace));
  }
  if (state_ != RunState::Running) return;
  if (regroup_ && !planning_.is_open() && pool.now - regroup_->since > grace)
    return recover(pool, "its group did not stop in time");
  const double missed_since = misses_.since();
  if (missed_since == 0) return;
  // Either a member has ended well and another still needs it, or both live and cannot reach each other.
  const bool hangs = group_.is_one_done();
  if (pool.now - missed_since <= (hangs ? 1 : 2) * dead_after) return;
  if (attempts_.are_in_vain(snapshots_.stable_step())) leave_out_unreachable(pool);
  recover(pool, fmt::format("its nodes did not reach each other at step {}", step_));
}

}  // namespace modelet::scheduler
