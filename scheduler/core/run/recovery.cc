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
using Purpose = Run::Planning::Purpose;
using Reason = Run::Regroup::Reason;

constexpr size_t kLongestLosses = 1024;  // bytes of text

// Seconds to wait between two groups of a run that makes no progress. A cause that lasts for a while, such as
// a full disk, must not use up all attempts at once.
double rest_before(uint32_t attempt) {
  constexpr uint32_t kAtOnce = 2;
  constexpr double kFirst = 2, kLongest = 30;
  if (attempt <= kAtOnce) return 0;
  return std::min(kLongest, kFirst * std::exp2(attempt - kAtOnce - 1));
}

}  // namespace

// ---- what happens to its nodes

void Run::member_lost(Pool& pool, Member& lost, const std::string& why) {
  lost.node = 0;
  pool.changed_runs.insert(id);
  if (state == RunState::Stopping) return stopped_by_loss(pool, why);
  // The member had ended its part, and its files are where they must be, so nothing is needed from it.
  if (lost.done && lost.outcome == Outcome::Ok && state == RunState::Running && has_last_files(pool))
    return settle(pool);
  recover(pool, why);
}

// The user wants the run to end, so the newest snapshot has to do.
void Run::stopped_by_loss(Pool& pool, const std::string& why) {
  abort_members(pool, why);
  set_state(pool, RunState::Stopped, fmt::format("{}; {}", why, where_it_stands()));
}

void Run::lost_its_part(Pool& pool, Member& idle) {
  const std::string why = fmt::format("node '{}' lost its part of the run at step {}", idle.name, step);
  if (!has_ended(state) && !idle.done) member_lost(pool, idle, why);
}

void Run::node_unwilling(Pool& pool, uint64_t node, const std::string& why) {
  if (has_ended(state)) return;
  const bool is_planned =
      planning && std::ranges::find(planning->nodes, node, &Member::node) != planning->nodes.end();
  if (is_planned) {
    const bool goes_on = planning->purpose == Purpose::kGoOn;
    forget_planning(pool);
    if (goes_on) return go_on(pool);
  }
  if (member(node) == nullptr || std::ranges::any_of(members, &Member::done)) return;
  if (state == RunState::Forming) {
    set_state(pool, RunState::Recovering, why);
    go_on(pool);
  } else if (state == RunState::Running && !regroup) {
    stop_to_regroup(pool, {.reason = Reason::kLeave, .nodes = {}, .why = why, .slow_node = {}});
  }
}

// A member cannot reach another one. If the connection of the missed member is gone, sending to it shows this
// (PeerGone), and it is lost at once. If not, the members may reach each other again; time_passed() decides.
void Run::member_missed(Pool& pool, const std::string& by, uint64_t by_step, const Member& missed,
                        const std::string& why) {
  if (state != RunState::Running && state != RunState::Stopping) return;
  if (misses.empty())
    pool.log(fmt::format("run {}: node '{}' misses node '{}': {}", id, by, missed.name, kept_text(why)));
  misses.add(pool.now, missed.name, by, by_step, pool.options.dead_after);
  Node* node = pool.node(missed.node);
  if (node == nullptr) return;
  node->missed = pool.now;
  pool.send(node->peer, msg::AliveT{});
}

void Run::member_found(Pool& pool, const std::string& by, const Member& found) {
  if (!misses.remove(pool.now, found.name, by)) return;
  if (Node* node = pool.node(found.node)) node->missed = 0;
  pool.log(fmt::format("run {}: node '{}' is not missed any more", id, found.name));
}

// ---- nodes that cannot work for the run

// A member could not get ready. If the run has worked before, the fault is local to this node, for example its
// owner does not lend the data, or it has another release. Before any group has worked, the reason may be the
// experiment.
void Run::not_prepared(Pool& pool, const Member& member, const std::string& why, bool by_user) {
  if (!has_run()) return fail(pool, why, by_user);
  const uint64_t node = member.node;
  const bool is_news = leave_out(pool, member.name, why);
  if (state != RunState::Recovering) return recover(pool, why, !is_news);
  if (!planning || std::ranges::find(planning->nodes, node, &Member::node) == planning->nodes.end()) return;
  forget_planning(pool);
  go_on(pool);
}

// True if the node had not been left out before.
bool Run::leave_out(Pool& pool, const std::string& node, const std::string& why) {
  return leave_out(pool, node, why, pool.options.left_out);
}

bool Run::leave_out(Pool& pool, const std::string& node, const std::string& why, double seconds) {
  pool.log(fmt::format("run {}: does without node '{}' for {:.0f} s: {}", id, node, seconds, why));
  return left_out.insert_or_assign(node, LeftOut{pool.now + seconds, why}).second;
}

// The connection between two nodes may be cut for longer. If a node and most of the others do not reach each
// other, that node is left out. Otherwise nobody can know whose fault it is, or whether somebody lies. Those
// concerned then take turns, each time for longer, so that no accusation costs the accused more than the accuser.
void Run::leave_out_unreachable(Pool& pool) {
  constexpr double kFirstTurn = 0.1;  // of the time for which a node is left out that is known to be at fault
  const std::map<std::string, std::set<std::string>> apart = misses.apart();
  const auto is_at_fault = [&](const std::string& name) {
    const size_t others = apart.at(name).size();
    return others >= 2 && 2 * others > members.size() - 1;
  };
  const auto turn = [&](const Member& each) {
    const uint64_t lot = mix64(pool.pool_id ^ mix64(id ^ mix64(epoch ^ mix64(each.node))));
    const auto turns = doubts.find(each.name);
    return std::tuple(!is_at_fault(each.name), turns == doubts.end() ? 0 : turns->second, lot);
  };
  const Member* next = nullptr;
  for (const Member& each : members)
    if (apart.contains(each.name) && can_do_without(pool, each.name) &&
        (next == nullptr || turn(each) < turn(*next)))
      next = &each;
  if (next == nullptr) return;
  const double longest = pool.options.left_out;
  if (is_at_fault(next->name)) {
    leave_out(pool, next->name, "it and most others do not reach each other", longest);
  } else {
    const double seconds = std::min(longest, longest * kFirstTurn * std::exp2(doubts[next->name]++));
    leave_out(pool, next->name, "it and another node do not reach each other; they take turns", seconds);
  }
}

bool Run::is_left_out(const Pool& pool, const std::string& node) const {
  const auto found = left_out.find(node);
  return found != left_out.end() && pool.now < found->second.until;
}

// Why it does without nodes, for people who wonder what it waits for.
std::string Run::left_out_text(const Pool& pool) const {
  std::string text;
  for (const auto& [node, reason] : left_out)
    if (is_left_out(pool, node)) text += fmt::format("; it does without node '{}': {}", node, reason.why);
  return printable(text, kLongestLosses);
}

// Whether several groups in turn came to nothing, so the cause is one that lasts.
bool Run::seems_stuck() const {
  constexpr uint32_t kPatience = 3;
  return attempts >= kPatience && snapshots.stable_step() == recovered_from;
}

// Whether enough other nodes are there.
bool Run::can_do_without(const Pool& pool, const std::string& node) const {
  const auto could_go_on = [&](const Member& each) {
    const auto there = pool.nodes.find(each.node);
    return each.name != node && there != pool.nodes.end() && there->second.is_willing() &&
           !is_left_out(pool, each.name);
  };
  const auto members_left = static_cast<size_t>(std::ranges::count_if(members, could_go_on));
  return members_left + nodes_that_may_join(pool).size() >= least_nodes();
}

// ---- snapshots

bool Run::snapshot_held(Pool& pool, uint32_t rank, const comm::Snapshot& files) {
  const auto is_there = [&](const std::string& holder) { return pool.is_there(holder); };
  const bool works = state == RunState::Running || state == RunState::Stopping;
  const bool has_more = snapshots.add_holders(files);
  const bool is_new = works && snapshots.add(epoch, static_cast<uint32_t>(members.size()), rank, files,
                                             most_snapshot_files(owner.size()));
  if (!has_more && !is_new) return false;
  // Agents do not repeat a report that was confirmed, so the record must have it. Reports about other
  // unfinished snapshots need no record: a later snapshot replaces them.
  if (has_more || files.keep) pool.changed_runs.insert(id);
  last_news = pool.now;
  if (has_ended(state)) return true;
  // Count the places where files can lie. If there are at least two, each file needs two holders.
  uint32_t places = pool.options.data_port != 0 ? 1 : 0;
  for (const Member& each : members) {
    // By name: a member that was lost and has registered again has its files, but is no member's node now.
    const auto holds = [&](const auto& entry) {
      return entry.second.info.name == each.name && !entry.second.info.holder_endpoint.empty();
    };
    const bool may_come_back = pool.node(each.node) == nullptr && pool.awaits_members;
    if (may_come_back || std::ranges::any_of(pool.nodes, holds)) ++places;
  }
  if (const auto stable = snapshots.settle(std::clamp(places, 1U, 2U), is_there)) {
    pool.changed_runs.insert(id);
    pool.log(fmt::format("run {}: the files of step {} are safe", id, *stable));
    for (const Member& each : members)
      if (const Node* node = pool.node(each.node))
        pool.send(node->peer, msg::StableT{{}, id, epoch, *stable});
  }
  settle(pool);
  return true;
}

// Whether the next group can continue from the last step although its snapshot is not stable: the nodes stay,
// and have all files of it. The files get their second holders while the next group trains. If a node is lost
// before that, the stable snapshot is still there.
bool Run::can_be_moved(const Pool& pool) const {
  if (!regroup || regroup->reason == Reason::kLeave) return false;
  const comm::Snapshot* last =
      snapshots.newest_complete([&](const std::string& holder) { return pool.is_there(holder); });
  return last != nullptr && last->step >= step;
}

// While the run waits for nodes, it needs only nodes that have a file which no other node has.
bool Run::needs_files_of(const Pool& pool, const std::string& node) const {
  const bool is_forming = state == RunState::Forming || state == RunState::Recovering;
  if ((!is_forming && state != RunState::Waiting) || snapshots.newest() == nullptr) return false;
  return std::ranges::any_of(snapshots.newest()->files, [&](const comm::SnapshotFile& file) {
    if (std::ranges::find(file.holders, node) == file.holders.end()) return false;
    return is_forming || std::ranges::none_of(file.holders, [&](const std::string& holder) {
             return holder != node && pool.is_there(holder);
           });
  });
}

// Whether the files of the last step are stable and, if there is a store, are all in it, where the user can
// fetch them.
bool Run::has_last_files(const Pool& pool) const {
  return snapshots.newest() != nullptr && snapshots.stable_step() >= step &&
         (pool.options.data_port == 0 || snapshots.newest_lies_with(""));
}

// An older snapshot, which lies in the store, is the last resort: nodes that were silent for some seconds
// often come back, and the work of a whole epoch may have to be repeated.
bool Run::snapshot_is_at_hand(Pool& pool) {
  const auto is_there = [&](const std::string& holder) { return pool.is_there(holder); };
  const comm::Snapshot* best = snapshots.newest_at_hand(is_there);
  if (best == snapshots.newest() || (best != nullptr && snapshots.newest_complete(is_there) != nullptr)) {
    files_missing_since = 0;
    return true;
  }
  if (files_missing_since == 0) files_missing_since = pool.now;
  if (best != nullptr && pool.now - files_missing_since >= pool.options.older_after) return true;
  const auto missing = snapshots.missing(is_there);
  wait_for_nodes(
      pool, missing ? fmt::format("waits for node '{}': nobody else has {} of step {}", missing->holder,
                                  missing->file, snapshots.stable_step())
                    : fmt::format("nobody is known to have all files of step {}", snapshots.stable_step()));
  return false;
}

// ---- the next group

void Run::recover(Pool& pool, const std::string& why, bool counts) {
  forget_planning(pool);
  regroup.reset();
  if (snapshots.stable_step() != recovered_from) {
    attempts = 0;
    failures.clear();
  }
  recovered_from = snapshots.stable_step();
  // Further losses before the next group is formed belong to the same attempt.
  if (state != RunState::Recovering && counts && ++attempts > pool.options.most_recoveries)
    return fail(pool,
                fmt::format("its group was formed {} times from step {} without getting on; at last: {}",
                            attempts, recovered_from, why));
  if (attempts > 1) snapshots.drop_unfinished();
  ++recoveries;
  losses = losses.empty() || losses.size() > kLongestLosses ? why : losses + "; " + why;
  set_state(pool, RunState::Recovering, why);
  rests_until = prepare_began + rest_before(attempts);
  if (pool.now < rests_until) return;
  rests_until = 0;
  go_on(pool);
}

// Chooses the nodes of the next group. There are three ways, tried in this order:
//   1. the nodes of the plan that was the reason for the change;
//   2. the same placement with free nodes in the places of the lost ones, which computes the same bits;
//   3. a new plan with whichever nodes are there.
void Run::go_on(Pool& pool) {
  Planning next{.purpose = Purpose::kGoOn};
  if (regroup)
    for (size_t newcomers = pool.nodes_to_spare(id); const Member& wanted : regroup->nodes) {
      const Node* node = pool.node(wanted.node);
      if (node == nullptr || !node->is_willing() || is_left_out(pool, wanted.name)) continue;
      const bool stays = member(wanted.node) != nullptr;
      if (!stays && (!node->is_free() || newcomers == 0)) continue;
      if (!stays) --newcomers;
      next.nodes.push_back(wanted);
    }
  // Replicas have the same number of nodes each. Newcomers come last.
  const size_t replicas = experiment.cluster.replicas;
  while (next.nodes.size() % replicas != 0 && member(next.nodes.back().node) == nullptr)
    next.nodes.pop_back();
  if (next.nodes.size() >= least_nodes() && next.nodes.size() % replicas == 0) {
    detail = "its modelets are placed anew";
    return ask_for_plan(pool, std::move(next));
  }
  if (!snapshot_is_at_hand(pool) || fill_vacancies(pool)) return;
  plan_with_whoever_is_there(pool);
}

std::vector<uint64_t> Run::nodes_that_may_join(const Pool& pool) const {
  std::vector<uint64_t> nodes = pool.free_nodes();
  std::erase_if(nodes, [&](uint64_t node) { return is_left_out(pool, pool.nodes.at(node).info.name); });
  return nodes;
}

bool Run::fill_vacancies(Pool& pool) {
  std::vector<Member> group = members;
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
        node == nullptr || !node->is_willing() || is_left_out(pool, each.name))
      vacant.push_back(&each);
  // A node that comes back gets its former rank, because it has some of the files.
  std::erase_if(vacant, [&](Member* each) {
    return take(*each, [each](const std::string& name) { return name == each->name; });
  });
  for (Member* each : vacant)
    if (!take(*each, [](const std::string&) { return true; })) return false;
  if (group.empty()) return false;
  form_group(pool, std::move(group));
  return true;
}

void Run::plan_with_whoever_is_there(Pool& pool) {
  std::vector<uint64_t> there = nodes_that_may_join(pool);
  for (const Member& each : members)
    if (const Node* node = pool.node(each.node);
        node != nullptr && node->is_willing() && !is_left_out(pool, each.name))
      there.push_back(each.node);
  const size_t replicas = experiment.cluster.replicas, least = least_nodes();
  const size_t count = std::min(there.size(), most_nodes(pool.options.max_nodes)) / replicas * replicas;
  if (count < least)
    return wait_for_nodes(pool, fmt::format("waits for {} to go on from step {}, {} free{}",
                                            nodes_text(least), snapshots.stable_step(),
                                            there.size() == 1 ? "1 is" : fmt::format("{} are", there.size()),
                                            left_out_text(pool)));
  Planning next{.purpose = Purpose::kGoOn};
  for (const uint64_t node : choose(pool, std::move(there), count)) {
    if (const Member* known = member(node))
      next.nodes.push_back(*known);
    else
      next.nodes.push_back({.node = node, .name = pool.nodes.at(node).info.name});
  }
  std::vector<uint64_t> ids;
  for (const Member& each : next.nodes) ids.push_back(each.node);
  std::ranges::sort(ids);
  if (ids == too_few) return;  // the planner has already failed with these nodes
  detail = fmt::format("is placed anew on {}", nodes_text(count));
  ask_for_plan(pool, std::move(next));
}

// No node stays reserved for the run while it waits.
void Run::wait_for_nodes(Pool& pool, const std::string& why) {
  regroup.reset();
  release_others(pool, {}, "the run waits for nodes");
  for (Member& each : members) each.node = 0;
  if (state != RunState::Waiting) return set_state(pool, RunState::Waiting, why);
  detail = why;
}

// ---- after a restart of the scheduler

// A member of a group that went on working without a scheduler has registered again.
void Run::member_returned(Pool& pool, Member& member, uint64_t node_id) {
  Node& node = pool.nodes.at(node_id);
  member.node = node_id;
  has_worked.insert(member.name);
  node.bind(id, epoch, pool.now);
  tell_again(pool, member);
}

void Run::tell_again(Pool& pool, const Member& member) const {
  if (state != RunState::Running && state != RunState::Stopping) return;
  const Node& node = pool.nodes.at(member.node);
  if (!member.done) {
    msg::StartT start{{}, id, epoch, {}, {}};
    for (const Member& each : members) {
      start.endpoints.push_back(each.endpoint);
      start.public_keys.push_back(each.public_key);
    }
    pool.send(node.peer, std::move(start));
    if (state == RunState::Stopping || regroup) pool.send(node.peer, msg::StopT{{}, id, epoch});
  }
  if (snapshots.newest() != nullptr)
    pool.send(node.peer, msg::StableT{{}, id, epoch, snapshots.stable_step()});
}

void Run::judge(Pool& pool) {
  if (has_ended(state) || is_waiting()) return;
  const auto away = std::ranges::find(members, uint64_t{0}, &Member::node);
  const bool is_forming = state == RunState::Forming || state == RunState::Recovering;
  if (away == members.end() && !is_forming) return;
  std::vector<std::string> lost;
  for (const Member& each : members)
    if (each.node == 0) lost.push_back(fmt::format("node '{}'", each.name));
  const std::string why =
      away == members.end()
          ? "the scheduler was restarted while the group was formed"
          : fmt::format("{} did not come back after the scheduler was restarted", fmt::join(lost, ", "));
  if (state == RunState::Stopping) return stopped_by_loss(pool, why);
  recover(pool, why);
}

// ---- patience

void Run::time_passed(Pool& pool) {
  const double grace = pool.options.stop_grace, dead_after = pool.options.dead_after;
  const bool all_done = std::ranges::all_of(members, &Member::done);
  if (all_done && (state == RunState::Running || state == RunState::Stopping)) return settle(pool);
  if (state == RunState::Stopping && pool.now - stop_asked > grace) {
    abort_members(pool, "the run did not stop in time");
    return set_state(
        pool, RunState::Stopped,
        fmt::format("aborted at step {}: it did not stop within {:.0f} s; nothing was saved after its last "
                    "checkpoint",
                    step, grace));
  }
  if (state == RunState::Recovering && rests_until > 0 && pool.now >= rests_until) {
    rests_until = 0;
    return go_on(pool);
  }
  if (files_missing_since > 0) {
    const comm::Snapshot* best =
        snapshots.newest_at_hand([&](const std::string& holder) { return pool.is_there(holder); });
    if (best == snapshots.newest())
      files_missing_since = 0;
    else if (state == RunState::Waiting && best == nullptr &&
             pool.now - files_missing_since > pool.options.hold_grace)
      return fail(pool, fmt::format("{}: gone for {:.0f} s", detail, pool.options.hold_grace));
  }
  if (state != RunState::Running) return;
  if (regroup && !planning && pool.now - regroup->since > grace)
    return recover(pool, "its group did not stop in time");
  const double missed_since = misses.since();
  if (missed_since == 0) return;
  // Either a member has ended well and another still needs it, or both live and cannot reach each other.
  const bool hangs = std::ranges::any_of(members, &Member::done);
  if (pool.now - missed_since <= (hangs ? 1 : 2) * dead_after) return;
  if (seems_stuck()) leave_out_unreachable(pool);
  recover(pool, fmt::format("its nodes did not reach each other at step {}", step));
}

}  // namespace modelet::scheduler
