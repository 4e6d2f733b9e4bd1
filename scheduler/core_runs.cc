// The part of Core that leads a run from the queue to its end: plans, groups, new plans for slow nodes,
// failures.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "scheduler/core.h"
#include "scheduler/core_text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;
using msg::Outcome;
using msg::RunState;

constexpr double kLeastGain = 0.05;  // of the step time, for a new plan
constexpr double kMostSpeed = 1e6;  // by which a node may differ from what it said of itself, and its inverse

}  // namespace

void Core::start_waiting_runs() {
  for (auto& [id, run] : runs_)
    if (run.state == RunState::Queued && !start(id, run)) return;
}

// Starts the run if it can start. False if it waits for nodes that work for other runs: later runs must not
// take them away from it. A run that wants more nodes than the pool has holds nobody up.
bool Core::start(uint64_t id, Run& run) {
  const size_t replicas = run.experiment.cluster.replicas;
  const size_t all = std::max(nodes_.size() / replicas * replicas, replicas);
  const size_t wanted = run.submit.nodes == 0 ? all : run.submit.nodes;
  std::vector<uint64_t> chosen;
  for (const auto& [node_id, node] : nodes_)
    if (node.run == 0) chosen.push_back(node_id);
  if (wanted > nodes_.size()) {
    run.detail = fmt::format("waits for {}, the pool has {}", nodes_text(wanted), nodes_.size());
    return true;
  }
  if (wanted > chosen.size()) {
    run.detail =
        fmt::format("waits for {}, {} of the pool's {} free", nodes_text(wanted),
                    chosen.size() == 1 ? "1 is" : fmt::format("{} are", chosen.size()), nodes_.size());
    return false;
  }
  // The fastest ones in the precision of the run; in the order of their names, which makes ranks easy to
  // follow.
  const auto info = [this](uint64_t node) -> const msg::RegisterT& { return nodes_.at(node).info; };
  const auto gflops = [&](uint64_t node) {
    const NodeCapacity offered = capacity(node, 1);
    return run.experiment.model.precision == Precision::kBf16 ? offered.bf16_rate() : offered.gflops;
  };
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](uint64_t a, uint64_t b) { return gflops(a) > gflops(b); });
  chosen.resize(wanted);
  // Nodes of like speed hold the same modelets in their replicas, which take turns in choosing.
  std::vector<uint64_t> ranks;
  for (size_t replica = 0; replica < replicas; ++replica)
    for (size_t i = replica; i < wanted; i += replicas) ranks.push_back(chosen[i]);
  chosen = std::move(ranks);
  if (replicas == 1)
    std::sort(chosen.begin(), chosen.end(),
              [&](uint64_t a, uint64_t b) { return info(a).name < info(b).name; });

  std::vector<Member> members;
  for (const uint64_t node : chosen) members.push_back({.node = node, .name = info(node).name});
  plan_and_bind(id, run, std::move(members));
  return true;
}

NodeCapacity Core::capacity(uint64_t node, double speed) const {
  const msg::RegisterT& info = nodes_.at(node).info;
  return {.name = info.name,
          .cores = info.cores,
          .memory_bytes = info.memory_bytes,
          .gflops = info.gflops * speed,
          .memory_gbps = info.memory_gbps * speed,
          .bf16_gflops = info.bf16_gflops * speed};
}

Plan Core::plan_for(const Run& run, const std::vector<Member>& nodes) const {
  std::vector<NodeCapacity> capacities;
  for (const Member& member : nodes) capacities.push_back(capacity(member.node, member.speed));
  return make_plan(run.experiment, run.shape, capacities);
}

void Core::plan_and_bind(uint64_t id, Run& run, std::vector<Member> chosen) {
  try {
    const Plan plan = plan_for(run, chosen);
    bind_group(id, run, std::move(chosen), plan);
  } catch (const Error& error) {
    fail(id, run, error.what(), error.exit_code() == ExitCode::kUsage);
  }
}

// `chosen` has a node for each of the plan, in its order.
void Core::bind_group(uint64_t id, Run& run, std::vector<Member> chosen, const Plan& plan) {
  // A node that got no modelet would only wait for the others: it stays free, or becomes so.
  std::vector<uint32_t> rank_of(chosen.size());
  run.members.clear();
  run.owner.clear();
  run.spare.clear();
  run.prepare_began = now_;
  for (size_t i = 0; i < chosen.size(); ++i) {
    rank_of[i] = static_cast<uint32_t>(run.members.size());
    Member& member = chosen[i];
    release(nodes_.at(member.node));
    if (plan.nodes[i].modelets.empty()) {
      run.spare.push_back(std::move(member));
      continue;
    }
    member.planned_seconds = plan.nodes[i].seconds_per_step;
    for (const uint32_t modelet : plan.nodes[i].modelets)
      member.planned_bytes += modelet_bytes(plan.cut[modelet], run.experiment);
    run.members.push_back(std::move(member));
  }
  run.balance = run.members.size() == 1 ? Balance(run.members.front().planned_seconds) : Balance();
  ++run.epoch;

  msg::PrepareT prepare;
  prepare.run = id;
  prepare.name = run.submit.name;
  prepare.epoch = run.epoch;
  prepare.group_key = mix64(options_.session ^ mix64(id));
  prepare.size = static_cast<uint32_t>(run.members.size());
  prepare.experiment = run.submit.experiment;
  prepare.shape = std::make_unique<msg::ShapeT>(*run.submit.shape);
  for (const uint32_t node : plan.owner) run.owner.push_back(rank_of[node]);
  prepare.owner = run.owner;
  prepare.out = run.submit.out;
  prepare.resume = run.submit.resume;
  prepare.train_data = run.submit.train_data;
  prepare.test_data = run.submit.test_data;
  prepare.data_port = options_.data_port;
  for (const Member& member : run.members) prepare.node_names.push_back(member.name);

  for (const Member& member : run.members) {
    Node& node = nodes_.at(member.node);
    node.run = id;
    node.bound_since = now_;
    send(node.peer, prepare);
    ++prepare.rank;
  }
  set_state(id, run, RunState::Preparing, fmt::format("loading data on {}", nodes_text(run.members.size())));
}

void Core::start_if_prepared(uint64_t id, Run& run) {
  msg::StartT start;
  start.run = id;
  start.epoch = run.epoch;
  for (const Member& member : run.members) {
    if (member.endpoint.empty()) return;
    start.endpoints.push_back(member.endpoint);
    start.public_keys.push_back(member.public_key);
  }
  for (const Member& member : run.members) send(nodes_.at(member.node).peer, start);
  run.prepare_seconds = now_ - run.prepare_began;
  set_state(id, run, RunState::Running, "");
}

void Core::finish_if_done(uint64_t id, Run& run) {
  if (!std::all_of(run.members.begin(), run.members.end(), [](const Member& member) { return member.done; }))
    return;
  const bool all_ok = std::all_of(run.members.begin(), run.members.end(),
                                  [](const Member& member) { return member.outcome == Outcome::Ok; });
  if (!all_ok && run.replan && !run.replan->checkpoint.empty()) return restart(id, run);
  set_state(id, run, all_ok ? RunState::Finished : RunState::Stopped,
            all_ok ? "" : fmt::format("stopped at step {}, checkpoint written", run.step));
}

void Core::ask_to_stop(uint64_t id, const Run& run) {
  for (const Member& member : run.members)
    if (!member.done) send(nodes_.at(member.node).peer, msg::StopT{{}, id});
}

// ---- nodes slower than planned

void Core::observe(uint64_t id, Run& run, const nlohmann::json& progress) {
  std::vector<std::string> names;
  for (const Member& member : run.members) names.push_back(member.name);
  const auto times = step_seconds(progress, names);
  if (!times) return;
  for (size_t i = 0; i < times->size(); ++i)
    if (const auto node = nodes_.find(run.members[i].node); node != nodes_.end() && node->second.run == id)
      node->second.times = (*times)[i];
  run.balance.add(now_, *times);
  const auto left = progress.find("eta_seconds");
  if (run.replans >= options_.most_replans || left == progress.end() || !left->is_number()) return;
  const std::vector<double> measured = run.balance.lasting(now_, options_.replan_after);
  if (measured.empty()) return;
  run.balance.forget();  // if it is not worth it now, it may be when this has lasted once more
  replan(id, run, measured, left->get<double>());
}

bool Core::may_use_spares() const {
  return std::ranges::none_of(runs_,
                              [](const auto& entry) { return entry.second.state == RunState::Queued; });
}

bool Core::is_free(const Member& spare) const {
  const auto node = nodes_.find(spare.node);
  return node != nodes_.end() && node->second.run == 0;
}

// Members that hold the modelets of `measured` seconds a step: what they were planned to take tells how fast
// they are, so the plan of now, predicted with these speeds, takes what was measured. Spare nodes that
// were not measured yet are taken to be as true to their word as the others; if there are none, at their
// word.
void Core::replan(uint64_t id, Run& run, const std::vector<double>& measured, double seconds_left) {
  if (std::ranges::any_of(run.members, [](const Member& member) { return member.done; })) return;
  const size_t members = run.members.size(), others = members - 1;
  const size_t slowest =
      static_cast<size_t>(std::max_element(measured.begin(), measured.end()) - measured.begin());
  Replan next;
  double faster = 0, speed = 0;  // than planned, and as Member::speed; of the others in the mean
  for (size_t i = 0; i < members; ++i) {
    const Member& member = run.members[i];
    if (measured[i] <= 0 || member.planned_seconds <= 0) return;
    Member again{.node = member.node, .name = member.name, .measured = true};
    again.speed = std::clamp(member.speed * member.planned_seconds / measured[i], 1 / kMostSpeed, kMostSpeed);
    if (i != slowest) {
      faster += again.speed / member.speed / static_cast<double>(others);
      speed += again.speed / static_cast<double>(others);
    }
    next.nodes.push_back(std::move(again));
  }
  if (others == 0) faster = speed = 1;
  // Replicas are cut alike: a node more would be one more in each.
  if (run.experiment.cluster.replicas == 1 && may_use_spares())
    for (const Member& spare : run.spare) {
      if (!is_free(spare)) continue;
      next.nodes.push_back(spare);
      if (!spare.measured) next.nodes.back().speed = speed;
    }
  Plan plan;
  try {
    plan = plan_for(run, next.nodes);
  } catch (const Error& error) {
    return log(fmt::format("run {}: no new plan: {}", id, error.what()));
  }
  double planned = 0;
  for (const NodePlan& node : plan.nodes) planned = std::max(planned, node.seconds_per_step);
  const double gain = 1 - planned / measured[slowest];
  // Stopping writes what starting reads: about as long.
  if (!(gain >= kLeastGain && gain * seconds_left > 2 * run.prepare_seconds)) return;

  size_t moved = 0;
  for (size_t modelet = 0; modelet < run.owner.size(); ++modelet)
    moved += run.owner[modelet] != plan.owner[modelet];
  if (moved == 0) return;
  const double slower = faster * run.members[slowest].speed / next.nodes[slowest].speed;
  next.event = {{"event", "replanned"},
                {"node", run.members[slowest].name},
                {"slower", slower},
                {"moved_modelets", moved},
                {"gain", gain}};
  log(fmt::format(
      "run {}: node '{}' takes {:.4f} s a step, {:.2f} times slower than planned; a new plan moves "
      "{} modelets and saves {:.0f} %",
      id, run.members[slowest].name, measured[slowest], slower, moved, 100 * gain));
  run.replan = std::move(next);
  ask_to_stop(id, run);
  set_state(id, run, RunState::Running,
            fmt::format("stops to place its modelets anew: node '{}' is {:.2f} times slower than planned",
                        run.members[slowest].name, slower));
}

// All members have stopped at the same step, with a checkpoint. Meanwhile another run may have got spare
// nodes.
void Core::restart(uint64_t id, Run& run) {
  Replan next = std::move(*std::exchange(run.replan, std::nullopt));
  const auto gone = [&](const Member& chosen) {
    return member_of(run, chosen.node) == nullptr && !(may_use_spares() && is_free(chosen));
  };
  std::erase_if(next.nodes, gone);
  run.submit.resume = next.checkpoint;
  ++run.replans;
  next.event["step"] = run.step;
  next.event["checkpoint"] = next.checkpoint;
  publish(id, run, next.event.dump());
  plan_and_bind(id, run, std::move(next.nodes));
}

void Core::fail(uint64_t id, Run& run, const std::string& why, bool user_error) {
  run.user_error = user_error;
  abort_members(id, run, why);
  set_state(id, run, RunState::Failed, why);
}

// Tells those that still work for the run; each stays bound until it answers.
void Core::abort_members(uint64_t id, Run& run, const std::string& reason) {
  for (const Member& member : run.members) {
    const auto node = nodes_.find(member.node);
    if (node != nodes_.end() && node->second.run == id) send(node->second.peer, msg::AbortT{{}, id, reason});
  }
}

void Core::end(uint64_t id, Run& run) {
  run.ended = now_;
  run.replan.reset();
  // Those that were kept for a new plan.
  for (const Member& member : run.members) {
    const auto node = nodes_.find(member.node);
    if (member.done && node != nodes_.end() && node->second.run == id) release(node->second);
  }
}

void Core::set_state(uint64_t id, Run& run, RunState state, const std::string& detail) {
  MODELET_CHECK(!has_ended(run.state), "a run that has ended changes no more");
  run.state = state;
  run.detail = detail;
  if (has_ended(state)) end(id, run);
  log(fmt::format("run {} '{}' {}{}{}", id, run.submit.name, state_name(state), detail.empty() ? "" : ": ",
                  detail));
  tell_watchers(id, run);
  if (has_ended(state)) run.watchers.clear();
}

}  // namespace modelet::scheduler
