// Nodes that are slower than planned and nodes that could help: finds out whether another placement is worth
// a new group.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "scheduler/core/run/pool.h"
#include "scheduler/core/run/run.h"
#include "scheduler/core/values/text.h"

namespace modelet::scheduler {
namespace {

using comm::control::RunState;

constexpr double kLeastGain = 0.05;  // of the step time, for a new plan
constexpr double kMostSpeed = 1e6;   // Member::speed is in [1 / kMostSpeed, kMostSpeed]

}  // namespace

void Run::observe(Pool& pool, const comm::control::RunEventT& progress) {
  if (progress.times.size() != members().size() || !std::ranges::all_of(progress.times, is_plausible)) return;
  for (size_t i = 0; i < members().size(); ++i)
    if (Node* node = pool.node(members()[i].node); node != nullptr && node->run == id_)
      node->times = progress.times[i];
  balance_.add(pool.now, progress.times);
  if (planning_.is_open() || !is_measure(progress.seconds_left)) return;
  look_for_help(pool, progress.seconds_left);
  if (planning_.is_open() || replans_ >= pool.options.most_replans) return;
  const std::vector<double> measured = balance_.lasting(pool.now, pool.options.replan_after);
  if (measured.empty()) return;
  balance_.forget();  // a new plan may be worth it when this has lasted for as long again
  look_for_gain(pool, measured, progress.seconds_left);
}

// Asks for a plan with the speeds that the members really have. `measured` is the seconds a step that each
// member took; compared with the planned seconds it tells how fast the member is, so the current plan,
// predicted with these speeds, takes as long as was measured. A spare node that was never measured is assumed
// to differ from what it says of itself as much as the members other than the slowest do in the mean; without
// other members, not at all.
void Run::look_for_gain(Pool& pool, const std::vector<double>& measured, double seconds_left) {
  if (group_.is_one_done()) return;
  const size_t others = members().size() - 1;
  Planning::Wanted next{.purpose = Purpose::kGain, .seconds_left = seconds_left};
  next.slowest = static_cast<size_t>(std::ranges::max_element(measured) - measured.begin());
  next.slowest_seconds = measured[next.slowest];
  double faster = 0, speed = 0;  // means of the others: relative to the plan, and Member::speed
  for (size_t i = 0; i < members().size(); ++i) {
    const Member& now = members()[i];
    if (measured[i] <= 0 || now.planned_seconds <= 0) return;
    Member again{.node = now.node, .name = now.name, .measured = true};
    again.speed = std::clamp(now.speed * now.planned_seconds / measured[i], 1 / kMostSpeed, kMostSpeed);
    if (i != next.slowest) {
      faster += again.speed / now.speed / static_cast<double>(others);
      speed += again.speed / static_cast<double>(others);
    }
    next.nodes.push_back(std::move(again));
  }
  if (others == 0) faster = speed = 1;
  next.slower = faster * members()[next.slowest].speed / next.nodes[next.slowest].speed;
  // Replicas must have the same number of nodes, so a single spare node cannot join a run with replicas.
  if (replicas() == 1)
    for (size_t newcomers = pool.nodes_to_spare(id_); const Member& free : group_.spare()) {
      if (newcomers == 0) break;
      const Node* node = pool.node(free.node);
      if (node == nullptr || !node->is_free() || exclusions_.has(free.name, pool.now)) continue;
      next.nodes.push_back(free);
      if (!free.measured) next.nodes.back().speed = speed;
      --newcomers;
    }
  ask_for_plan(pool, std::move(next));
}

// Asks for a plan with nodes that became free, or joined the pool, since the group was formed.
void Run::look_for_help(Pool& pool, double seconds_left) {
  if (group_.is_one_done()) return;
  if (is_private(submission_.experiment)) return take_owners_back(pool, seconds_left);
  std::vector<uint64_t> free = nodes_that_may_join(pool);
  std::erase_if(free, [&](uint64_t node) {
    return no_help_.contains(node) ||
           std::ranges::find(group_.spare(), node, &Member::node) != group_.spare().end();
  });
  const size_t most = most_nodes(pool.options.max_nodes), room = most - std::min(most, members().size());
  const size_t more = std::min({free.size(), room, pool.nodes_to_spare(id_)}) / replicas() * replicas();
  if (more == 0) return;
  Planning::Wanted next{.purpose = Purpose::kGain, .nodes = members(), .seconds_left = seconds_left};
  for (const Member& each : members())
    if (each.planned_seconds > members()[next.slowest].planned_seconds)
      next.slowest = static_cast<size_t>(&each - members().data());
  next.slowest_seconds = members()[next.slowest].planned_seconds;
  for (const uint64_t node : choose(pool, std::move(free), more)) {
    no_help_.insert(node);
    next.nodes.push_back({.node = node, .name = pool.nodes.at(node).info.name});
  }
  ask_for_plan(pool, std::move(next));
}

// What an owner teaches the run is worth a new group, unless the run will soon have ended. The members are in the order of
// their names, as choose() puts them.
void Run::take_owners_back(Pool& pool, double seconds_left) {
  if (state_ != RunState::Running || regroup_ || seconds_left <= 2 * group_.prepare_seconds()) return;
  std::vector<uint64_t> back = nodes_that_may_join(pool);
  back.resize(std::min(back.size(), pool.nodes_to_spare(id_)));
  if (back.empty()) return;
  std::vector<Member> nodes = members();
  std::string names;
  for (const uint64_t node : back) {
    const std::string& name = pool.nodes.at(node).info.name;
    nodes.push_back({.node = node, .name = name});
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", name);
  }
  std::ranges::sort(nodes, {}, &Member::name);
  stop_to_regroup(pool, {.reason = Reason::kHelp,
                         .nodes = std::move(nodes),
                         .why = fmt::format("{} of {} owners take part again: {}", back.size(), owners_.size(), names),
                         .slow_node = {}});
}

void Run::stop_for_gain(Pool& pool, Planning::Wanted wanted, const Plan& plan) {
  if (state_ != RunState::Running || regroup_ || group_.is_one_done()) return;
  double planned = 0;
  for (const NodePlan& node : plan.nodes) planned = std::max(planned, node.seconds_per_step);
  const double gain = 1 - planned / wanted.slowest_seconds;
  // Stopping writes about what starting reads, so it takes about as long.
  if (!(gain >= kLeastGain && gain * wanted.seconds_left > 2 * group_.prepare_seconds())) return;
  size_t moved = 0;
  for (size_t modelet = 0; modelet < group_.owner().size(); ++modelet)
    moved += group_.owner()[modelet] != plan.owner[modelet];
  if (moved == 0) return;
  const std::string& slow = members()[wanted.slowest].name;
  const bool is_slow = wanted.slower > 0;
  pool.log(is_slow ? fmt::format(
                         "run {}: node '{}' takes {:.4f} s a step, {:.2f} times slower than planned; a new "
                         "plan moves {} modelets and saves {:.0f} %",
                         id_, slow, wanted.slowest_seconds, wanted.slower, moved, 100 * gain)
                   : fmt::format("run {}: a new plan with {} moves {} modelets and saves {:.0f} %", id_,
                                 nodes_text(wanted.nodes.size()), moved, 100 * gain));
  const std::string why =
      is_slow ? fmt::format("node '{}' is {:.2f} times slower than planned", slow, wanted.slower)
              : fmt::format("{} can do more than {}", nodes_text(wanted.nodes.size()),
                            nodes_text(members().size()));
  stop_to_regroup(pool, {.reason = is_slow ? Reason::kSlow : Reason::kHelp,
                         .nodes = std::move(wanted.nodes),
                         .why = why,
                         .slow_node = slow,
                         .slower = wanted.slower,
                         .moved_modelets = moved,
                         .gain = gain});
}

// No step is lost, because the members stop with a snapshot.
void Run::stop_to_regroup(Pool& pool, Regroup wanted) {
  planning_.forget(pool);
  regroup_ = std::move(wanted);
  regroup_->since = pool.now;
  group_.stop(pool, id_);
  set_state(pool, RunState::Running, "stops to place its modelets anew: " + regroup_->why);
}

}  // namespace modelet::scheduler
