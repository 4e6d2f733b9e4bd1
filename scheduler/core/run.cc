#include "scheduler/core/run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/experiment/memory.h"
#include "base/rng.h"
#include "comm/transport/endpoint.h"
#include "scheduler/core/pool.h"
#include "scheduler/core/text.h"
#include "scheduler/plan/bytes_text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;
using msg::Outcome;
using msg::RunState;
using Purpose = Run::Planning::Purpose;

constexpr double kLeastGain = 0.05;  // of the step time, for a new plan
constexpr double kMostSpeed = 1e6;  // by which a node may differ from what it said of itself, and its inverse
constexpr size_t kLongestEndpoint = 256;  // bytes, of an endpoint or its key

bool is_endpoint(const msg::PreparedT& message) {
  if (message.endpoint.size() > kLongestEndpoint || message.public_key.size() > kLongestEndpoint)
    return false;
  if (kept_text(message.endpoint) != message.endpoint || kept_text(message.public_key) != message.public_key)
    return false;
  try {
    comm::check_endpoint(message.endpoint, false);
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

}  // namespace

bool has_ended(RunState state) {
  return state == RunState::Finished || state == RunState::Failed || state == RunState::Stopped;
}

const char* state_name(RunState state) {
  switch (state) {
    case RunState::Queued:
      return "queued";
    case RunState::Forming:
      return "forming";
    case RunState::Running:
      return "running";
    case RunState::Stopping:
      return "stopping";
    case RunState::Finished:
      return "finished";
    case RunState::Failed:
      return "failed";
    case RunState::Stopped:
      return "stopped";
    case RunState::Recovering:
      return "recovering";
    case RunState::Waiting:
      return "waiting";
  }
  return "unknown";
}

// ---- from the queue to a group

bool Run::try_to_start(Pool& pool) {
  if (planning) return true;
  const size_t replicas = experiment.cluster.replicas, present = pool.nodes.size();
  const size_t all = std::max(present / replicas * replicas, replicas);
  const size_t wanted = submit.nodes == 0 ? all : submit.nodes;
  std::vector<uint64_t> free;
  for (const auto& [node_id, node] : pool.nodes)
    if (node.is_free()) free.push_back(node_id);
  if (wanted > present) {
    detail = fmt::format("waits for {}, the pool has {}", nodes_text(wanted), present);
    return true;
  }
  if (wanted > free.size()) {
    detail = fmt::format("waits for {}, {} of the pool's {} free", nodes_text(wanted),
                         free.size() == 1 ? "1 is" : fmt::format("{} are", free.size()), present);
    return false;
  }
  Planning start{.purpose = Purpose::kStart};
  for (const uint64_t node : choose(pool, std::move(free), wanted))
    start.nodes.push_back({.node = node, .name = pool.nodes.at(node).info.name});
  detail = fmt::format("is placed on {}", nodes_text(wanted));
  ask_for_plan(pool, std::move(start));
  return true;
}

// The fastest nodes in the precision of the run, ordered by name, which makes ranks easy to follow.
std::vector<uint64_t> Run::choose(const Pool& pool, std::vector<uint64_t> free, size_t wanted) const {
  const auto gflops = [&](uint64_t node) {
    const NodeCapacity offered = pool.capacity(node, 1);
    return experiment.model.precision == Precision::kBf16 ? offered.bf16_rate() : offered.gflops;
  };
  std::stable_sort(free.begin(), free.end(), [&](uint64_t a, uint64_t b) { return gflops(a) > gflops(b); });
  free.resize(wanted);
  // Nodes of similar speed hold the same modelets in their replicas, which take turns in choosing.
  const size_t replicas = experiment.cluster.replicas;
  std::vector<uint64_t> ranks;
  for (size_t replica = 0; replica < replicas; ++replica)
    for (size_t i = replica; i < wanted; i += replicas) ranks.push_back(free[i]);
  const auto name = [&](uint64_t node) -> const std::string& { return pool.nodes.at(node).info.name; };
  if (replicas == 1)
    std::sort(ranks.begin(), ranks.end(), [&](uint64_t a, uint64_t b) { return name(a) < name(b); });
  return ranks;
}

void Run::ask_for_plan(Pool& pool, Planning wanted) {
  wanted.number = pool.next_plan++;
  PlanRequest request{.run = id, .number = wanted.number, .experiment = experiment, .shape = shape};
  for (const Member& chosen : wanted.nodes) {
    request.nodes.push_back(pool.capacity(chosen.node, chosen.speed));
    Node& node = pool.nodes.at(chosen.node);
    if (wanted.purpose != Purpose::kGain && node.is_free()) node.planned_for = id;
  }
  planning = std::move(wanted);
  pool.actions.push_back(std::move(request));
}

// Nobody wants the plan any more.
void Run::forget_planning(Pool& pool) {
  if (!planning) return;
  pool.actions.emplace_back(ForgetPlan{planning->number});
  end_planning(pool);
}

// The nodes that were kept for it are free again.
void Run::end_planning(Pool& pool) {
  for (const Member& chosen : planning->nodes)
    if (Node* node = pool.node(chosen.node); node != nullptr && node->planned_for == id)
      node->planned_for = 0;
  planning.reset();
}

void Run::planned(Pool& pool, const Planned& answer) {
  if (!planning || planning->number != answer.number) return;  // the answer to a request that was forgotten
  Planning wanted = *planning;
  end_planning(pool);
  if (wanted.purpose == Purpose::kGain) {
    if (answer.plan) return stop_for_gain(pool, std::move(wanted), *answer.plan);
    return pool.log(fmt::format("run {}: no new plan: {}", id, answer.failure));
  }
  if (!answer.plan) return fail(pool, answer.failure, answer.user_error);
  form_group(pool, std::move(wanted.nodes), *answer.plan);
}

// `chosen` has a node for each of the plan, in its order.
void Run::form_group(Pool& pool, std::vector<Member> chosen, const Plan& plan) {
  // A node without modelets would only wait for the others: it stays free, or becomes so.
  std::vector<uint32_t> rank_of(chosen.size());
  members.clear();
  owner.clear();
  spare.clear();
  replan.reset();
  prepare_began = pool.now;
  for (size_t i = 0; i < chosen.size(); ++i) {
    rank_of[i] = static_cast<uint32_t>(members.size());
    Member& candidate = chosen[i];
    pool.nodes.at(candidate.node).release();
    if (plan.nodes[i].modelets.empty()) {
      spare.push_back(std::move(candidate));
      continue;
    }
    candidate.planned_seconds = plan.nodes[i].seconds_per_step;
    for (const uint32_t modelet : plan.nodes[i].modelets)
      candidate.planned_bytes += modelet_bytes(plan.partition[modelet], experiment);
    pool.nodes.at(candidate.node).bind(id, pool.now);
    members.push_back(std::move(candidate));
  }
  for (const uint32_t node : plan.owner) owner.push_back(rank_of[node]);
  balance = members.size() == 1 ? Balance(members.front().planned_seconds) : Balance();
  ++epoch;
  send_prepare(pool);
  set_state(pool, RunState::Forming, fmt::format("loading data on {}", nodes_text(members.size())));
}

void Run::send_prepare(Pool& pool) const {
  msg::PrepareT prepare;
  prepare.run = id;
  prepare.name = submit.name;
  prepare.epoch = epoch;
  prepare.group_key = mix64(pool.options.session ^ mix64(id));
  prepare.size = static_cast<uint32_t>(members.size());
  prepare.experiment = submit.experiment;
  prepare.shape = std::make_unique<msg::ShapeT>(*submit.shape);
  prepare.owner = owner;
  prepare.out = submit.out;
  prepare.resume = submit.resume;
  prepare.train_data = submit.train_data;
  prepare.test_data = submit.test_data;
  prepare.data_port = pool.options.data_port;
  prepare.submitter = submitter;
  prepare.by_admin = by_admin;
  for (const Member& each : members) prepare.node_names.push_back(each.name);
  for (const Member& each : members) {
    pool.send(pool.nodes.at(each.node).peer, prepare);
    ++prepare.rank;
  }
}

void Run::prepared(Pool& pool, Member& ready, const msg::PreparedT& message) {
  if (state != RunState::Forming || epoch != message.epoch) return;
  if (!is_endpoint(message)) return fail(pool, fmt::format("node '{}' gave no usable endpoint", ready.name));
  ready.endpoint = message.endpoint;
  ready.public_key = message.public_key;
  pool.log(fmt::format("run {}: node '{}' is ready, its modelets take {} (planned: {})", id, ready.name,
                       bytes_text(message.memory_bytes), bytes_text(ready.planned_bytes)));
  start_if_prepared(pool);
}

// About an agent whose data address can be reached only from its own machine, in a group with others: better
// said now than after the time-out of those who would try.
std::string Run::unreachable() const {
  const auto is_local = [](const Member& each) { return comm::is_loopback(each.endpoint); };
  const auto local = std::ranges::find_if(members, is_local);
  const auto other = std::ranges::find_if_not(members, is_local);
  if (local == members.end() || other == members.end()) return "";
  return fmt::format(
      "node '{}' offers its data at {}, which node '{}' at {} cannot reach: start its agent with "
      "--data-address and the address of its machine",
      local->name, local->endpoint, other->name, other->endpoint);
}

void Run::start_if_prepared(Pool& pool) {
  msg::StartT start;
  start.run = id;
  start.epoch = epoch;
  for (const Member& each : members) {
    if (each.endpoint.empty()) return;
    start.endpoints.push_back(each.endpoint);
    start.public_keys.push_back(each.public_key);
  }
  if (const std::string why = unreachable(); !why.empty()) return fail(pool, why);
  for (const Member& each : members) pool.send(pool.nodes.at(each.node).peer, start);
  prepare_seconds = pool.now - prepare_began;
  set_state(pool, RunState::Running, "");
}

// ---- what its nodes report

void Run::reported(Pool& pool, uint64_t node, const nlohmann::json& event) {
  const std::string kind = text_of(event, "event");
  if (state == RunState::Forming) note_data(kind, event);
  if (state == RunState::Running && members.front().node == node) {
    if (kind == "progress" && !replan) observe(pool, event);
    if (kind == "interrupted" && replan) {  // for the watchers the run goes on
      replan->checkpoint = text_of(event, "checkpoint");
      return;
    }
  }
  publish(pool, event);
}

// The list of runs shows why a run does not begin yet.
void Run::note_data(const std::string& kind, const nlohmann::json& event) {
  const auto number = [&](const char* key) {
    const auto found = event.find(key);
    return found != event.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
  };
  std::optional<double> done;
  if (kind == "preparing") done = number("done");
  if (const auto bytes = number("bytes"), total = number("total_bytes"); kind == "fetching" && bytes && total)
    done = *bytes / std::max(1.0, *total);
  if (done)
    detail = fmt::format("node '{}' {} data: {:.0f} %", text_of(event, "node"),
                         kind == "preparing" ? "prepares" : "fetches", 100 * std::clamp(*done, 0.0, 1.0));
}

void Run::publish(Pool& pool, const nlohmann::json& event) {
  events.push_back(event.dump());
  for (const std::string& watcher : watchers) pool.send(watcher, msg::RunEventT{{}, id, events.back()});
  if (events.size() > pool.options.max_run_events) events.pop_front();
}

void Run::member_done(Pool& pool, Member& finished, const msg::RunDoneT& message) {
  if (!replan) pool.nodes.at(finished.node).release();
  if (has_ended(state)) return;
  finished.done = true;
  finished.outcome = message.outcome;
  step = std::max(step, message.step);
  const bool early = state == RunState::Forming;
  if (message.outcome != Outcome::Failed && !early) return finish_if_done(pool);
  fail(pool, fmt::format("node '{}' failed at step {}: {}", finished.name, step, kept_text(message.message)),
       message.user_error);
}

void Run::node_gone(Pool& pool, uint64_t node, const std::string& name, const std::string& why) {
  if (has_ended(state)) return;
  if (member(node) != nullptr) return fail(pool, fmt::format("node '{}' {} at step {}", name, why, step));
  if (!planning || planning->purpose == Purpose::kGain) return;
  // One of the nodes that the plan is made for: another plan is needed.
  const bool goes_on = planning->purpose == Purpose::kGoOn;
  forget_planning(pool);
  if (goes_on) go_on(pool);
}

// ---- its end

void Run::finish_if_done(Pool& pool) {
  if (!std::ranges::all_of(members, &Member::done)) return;
  const bool all_ok =
      std::ranges::all_of(members, [](const Member& each) { return each.outcome == Outcome::Ok; });
  if (!all_ok && replan && !replan->checkpoint.empty()) {
    submit.resume = replan->checkpoint;
    ++replans;
    publish(pool, {{"event", "replanned"},
                   {"node", replan->slow_node},
                   {"slower", replan->slower},
                   {"moved_modelets", replan->moved_modelets},
                   {"gain", replan->gain},
                   {"step", step},
                   {"checkpoint", replan->checkpoint}});
    return go_on(pool);
  }
  set_state(pool, all_ok ? RunState::Finished : RunState::Stopped,
            all_ok ? "" : fmt::format("stopped at step {}, checkpoint written", step));
}

void Run::asked_to_stop(Pool& pool) {
  const std::string between =
      fmt::format("stopped at step {} while its modelets were placed anew, checkpoint written", step);
  if (state == RunState::Queued) {
    set_state(pool, RunState::Stopped, "stopped while it waited");
  } else if (state == RunState::Forming) {
    abort_members(pool, "the run was stopped");
    set_state(pool, RunState::Stopped, replans == 0 ? "stopped before its first step" : between);
  } else if (state == RunState::Running && planning && planning->purpose == Purpose::kGoOn) {
    set_state(pool, RunState::Stopped, between);
  } else if (state == RunState::Running) {
    stop_asked = pool.now;
    forget_planning(pool);
    replan.reset();
    ask_members_to_stop(pool);
    set_state(pool, RunState::Stopping, "asked to stop at the next step");
  }
}

void Run::time_passed(Pool& pool) {
  if (state != RunState::Stopping || pool.now - stop_asked <= pool.options.stop_grace) return;
  abort_members(pool, "the run did not stop in time");
  set_state(
      pool, RunState::Stopped,
      fmt::format("aborted at step {}: it did not stop within {:.0f} s; nothing was saved after its last "
                  "checkpoint",
                  step, pool.options.stop_grace));
}

void Run::fail(Pool& pool, const std::string& why, bool by_user) {
  user_error = by_user;
  abort_members(pool, why);
  set_state(pool, RunState::Failed, why);
}

void Run::ask_members_to_stop(Pool& pool) const {
  for (const Member& each : members)
    if (!each.done) pool.send(pool.nodes.at(each.node).peer, msg::StopT{{}, id});
}

// Tells the nodes that still work for the run; each stays bound until it answers.
void Run::abort_members(Pool& pool, const std::string& reason) const {
  for (const Member& each : members)
    if (const Node* node = pool.node(each.node); node != nullptr && node->run == id)
      pool.send(node->peer, msg::AbortT{{}, id, reason});
}

void Run::set_state(Pool& pool, RunState to, const std::string& why) {
  MODELET_CHECK(!has_ended(state), "a run that has ended changes no more");
  state = to;
  detail = why;
  if (has_ended(to)) {
    ended = pool.now;
    replan.reset();
    forget_planning(pool);
    for (const Member& each : members)  // those that were kept for a new plan
      if (Node* node = pool.node(each.node); each.done && node != nullptr && node->run == id) node->release();
  }
  pool.log(fmt::format("run {} '{}' {}{}{}", id, submit.name, state_name(to), why.empty() ? "" : ": ", why));
  tell_watchers(pool);
  if (has_ended(to)) watchers.clear();
}

// ---- nodes slower than planned

void Run::observe(Pool& pool, const nlohmann::json& progress) {
  std::vector<std::string> names;
  for (const Member& each : members) names.push_back(each.name);
  const auto times = step_seconds(progress, names);
  if (!times) return;
  for (size_t i = 0; i < times->size(); ++i)
    if (Node* node = pool.node(members[i].node); node != nullptr && node->run == id)
      node->times = (*times)[i];
  balance.add(pool.now, *times);
  const auto left = progress.find("eta_seconds");
  if (planning || replans >= pool.options.most_replans || left == progress.end() || !left->is_number())
    return;
  const std::vector<double> measured = balance.lasting(pool.now, pool.options.replan_after);
  if (measured.empty()) return;
  balance.forget();  // if it is not worth it now, it may be when this has lasted once more
  look_for_gain(pool, measured, left->get<double>());
}

// Members whose modelets took `measured` seconds a step: the planned times tell how fast the members are, so
// the current plan, predicted with these speeds, takes what was measured. Spare nodes that were not measured
// yet are assumed to keep their word as well as the others do; if there are no others, fully.
void Run::look_for_gain(Pool& pool, const std::vector<double>& measured, double seconds_left) {
  if (std::ranges::any_of(members, &Member::done)) return;
  const size_t others = members.size() - 1;
  Planning next{.purpose = Purpose::kGain, .seconds_left = seconds_left};
  next.slowest = static_cast<size_t>(std::ranges::max_element(measured) - measured.begin());
  next.slowest_seconds = measured[next.slowest];
  double faster = 0, speed = 0;  // than planned, and as Member::speed; of the others in the mean
  for (size_t i = 0; i < members.size(); ++i) {
    const Member& now = members[i];
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
  next.slower = faster * members[next.slowest].speed / next.nodes[next.slowest].speed;
  // Replicas have the same number of nodes, so one more node means one more in each.
  if (experiment.cluster.replicas == 1 && !pool.has_waiting_run())
    for (const Member& free : spare) {
      const Node* node = pool.node(free.node);
      if (node == nullptr || !node->is_free()) continue;
      next.nodes.push_back(free);
      if (!free.measured) next.nodes.back().speed = speed;
    }
  ask_for_plan(pool, std::move(next));
}

void Run::stop_for_gain(Pool& pool, Planning wanted, const Plan& plan) {
  if (state != RunState::Running || std::ranges::any_of(members, &Member::done)) return;
  double planned = 0;
  for (const NodePlan& node : plan.nodes) planned = std::max(planned, node.seconds_per_step);
  const double gain = 1 - planned / wanted.slowest_seconds;
  // Stopping writes what starting reads, so it takes about as long.
  if (!(gain >= kLeastGain && gain * wanted.seconds_left > 2 * prepare_seconds)) return;
  size_t moved = 0;
  for (size_t modelet = 0; modelet < owner.size(); ++modelet) moved += owner[modelet] != plan.owner[modelet];
  if (moved == 0) return;
  const std::string& slow = members[wanted.slowest].name;
  pool.log(fmt::format(
      "run {}: node '{}' takes {:.4f} s a step, {:.2f} times slower than planned; a new plan moves "
      "{} modelets and saves {:.0f} %",
      id, slow, wanted.slowest_seconds, wanted.slower, moved, 100 * gain));
  replan = Replan{.nodes = std::move(wanted.nodes),
                  .slow_node = slow,
                  .slower = wanted.slower,
                  .moved_modelets = moved,
                  .gain = gain,
                  .checkpoint = {}};
  ask_members_to_stop(pool);
  set_state(pool, RunState::Running,
            fmt::format("stops to place its modelets anew: node '{}' is {:.2f} times slower than planned",
                        slow, wanted.slower));
}

// All members have stopped at the same step, with a checkpoint. Meanwhile another run may have taken spare
// nodes.
void Run::go_on(Pool& pool) {
  Planning next{.purpose = Purpose::kGoOn};
  for (const Member& wanted : replan->nodes) {
    const Node* node = pool.node(wanted.node);
    const bool free = node != nullptr && node->is_free() && !pool.has_waiting_run();
    if (member(wanted.node) != nullptr || free) next.nodes.push_back(wanted);
  }
  detail = "its modelets are placed anew";
  ask_for_plan(pool, std::move(next));
}

// ---- what it says

Run::Member* Run::member(uint64_t node) {
  const auto found = std::ranges::find(members, node, &Member::node);
  return found == members.end() ? nullptr : &*found;
}

msg::RunStatusT Run::status(double now) const {
  msg::RunStatusT status;
  status.run = id;
  status.name = submit.name;
  status.submitter = submitter;
  status.state = state;
  status.detail = detail;
  status.step = step;
  for (const Member& each : members) status.node_names.push_back(each.name);
  status.seconds = (has_ended(state) ? ended : now) - submitted;
  status.replans = replans;
  status.user_error = user_error;
  if (const auto straggler = find_straggler(balance.latest());
      straggler && straggler->excess >= kNotableExcess && !has_ended(state)) {
    status.straggler = members[straggler->node].name;
    status.straggler_excess = straggler->excess;
  }
  return status;
}

void Run::tell_watchers(Pool& pool) const {
  for (const std::string& watcher : watchers) pool.send(watcher, status(pool.now));
}

}  // namespace modelet::scheduler
