// How a run gets a group: a plan is requested, nodes are bound, prepare, and start.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/experiment/memory.h"
#include "base/rng.h"
#include "base/text/printable.h"
#include "comm/security/keys.h"
#include "comm/transport/endpoint.h"
#include "scheduler/core/run/pool.h"
#include "scheduler/core/run/run.h"
#include "scheduler/core/values/text.h"
#include "scheduler/plan/bytes_text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;
using msg::RunState;
using Purpose = Run::Planning::Purpose;

constexpr size_t kLongestWhy = 512;  // bytes of text

// What is wrong with the data socket that a node offers; empty: nothing. The other members connect to it, and if they
// could not, they would seem to be at fault.
std::string why_unusable(const msg::PreparedT& message, const Node& node) {
  if (!is_address(message.endpoint)) return "gave no usable endpoint";
  // As agents do it: a node that has a key uses keys, except in a folder that is closed to others.
  const bool has_keys = !node.key.empty() && !message.endpoint.starts_with("ipc://");
  if (has_keys && !comm::is_key(message.public_key)) return "gave no usable key for its endpoint";
  if (!has_keys && !message.public_key.empty()) return "gave a key for its endpoint, where there are none";
  return {};
}

// The nodes that hold files of the snapshot `from`, and the members, which hold new ones.
std::vector<std::unique_ptr<msg::HolderT>> holders_of(const Pool& pool, const comm::Snapshot* from,
                                                      const std::vector<Run::Member>& members) {
  std::set<std::string> names;
  for (const Run::Member& each : members) names.insert(each.name);
  if (from != nullptr)
    for (const comm::SnapshotFile& file : from->files) names.insert(file.holders.begin(), file.holders.end());
  if (pool.options.data_port != 0) names.insert("");
  std::vector<std::unique_ptr<msg::HolderT>> holders;
  for (const auto& [id, node] : pool.nodes)
    if (names.contains(node.info.name) && !node.info.holder_endpoint.empty())
      holders.push_back(std::make_unique<msg::HolderT>(msg::HolderT{
          {}, node.info.name, node.info.holder_endpoint, node.info.holder_key, node.info.fetch_key}));
  if (names.contains("")) holders.push_back(std::make_unique<msg::HolderT>());
  return holders;
}

}  // namespace

size_t Run::least_nodes() const {
  return std::max<size_t>({experiment.cluster.min_nodes, experiment.cluster.replicas, 1});
}

// The experiment's maximum; without one, as many nodes as the run began with.
size_t Run::most_nodes(size_t max_nodes) const {
  size_t most = experiment.cluster.max_nodes;
  if (most == 0) most = began_with;
  if (most == 0) most = submit.nodes == 0 ? max_nodes : submit.nodes;
  return std::max(most, least_nodes());
}

size_t Run::wanted_nodes(size_t max_nodes, size_t present) const {
  if (state == RunState::Waiting) return least_nodes();
  if (submit.nodes != 0) return submit.nodes;
  const size_t replicas = experiment.cluster.replicas;
  const size_t all = std::min(present, most_nodes(max_nodes)) / replicas * replicas;
  return std::max(all, least_nodes());
}

void Run::place(Pool& pool) {
  if (state == RunState::Waiting) return go_on(pool);
  const size_t wanted = wanted_nodes(pool.options.max_nodes, pool.willing_nodes());
  began_with = wanted;
  Planning start{.purpose = Purpose::kStart};
  for (const uint64_t node : choose(pool, pool.free_nodes(), wanted))
    start.nodes.push_back({.node = node, .name = pool.nodes.at(node).info.name});
  detail = fmt::format("is placed on {}", nodes_text(wanted));
  ask_for_plan(pool, std::move(start));
}

// Chooses the fastest nodes in the precision of the run. Without replicas they are ordered by name, which
// makes ranks easy to follow.
std::vector<uint64_t> Run::choose(const Pool& pool, std::vector<uint64_t> free, size_t wanted) const {
  const auto gflops = [&](uint64_t node) {
    const NodeCapacity offered = pool.capacity(node, 1);
    return experiment.model.precision == Precision::kBf16 ? offered.bf16_rate() : offered.gflops;
  };
  std::stable_sort(free.begin(), free.end(), [&](uint64_t a, uint64_t b) { return gflops(a) > gflops(b); });
  free.resize(wanted);
  // The replicas take turns in choosing, so that nodes of similar speed hold the same modelets in their
  // replicas.
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
  PlanRequest request{
      .run = id, .number = wanted.number, .key = submitter, .experiment = experiment, .shape = shape};
  for (const Member& chosen : wanted.nodes) {
    request.nodes.push_back(pool.capacity(chosen.node, chosen.speed));
    Node& node = pool.nodes.at(chosen.node);
    if (wanted.purpose != Purpose::kGain && node.is_free()) node.planned_for = id;
  }
  planning = std::move(wanted);
  pool.actions.push_back(std::move(request));
}

// Withdraws the request for a plan that is no longer wanted.
void Run::forget_planning(Pool& pool) {
  if (!planning) return;
  pool.actions.emplace_back(ForgetPlan{planning->number});
  end_planning(pool);
}

// Makes the nodes that were reserved for the plan free again.
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
  // While the plan was made, the last holder of some file may have gone.
  if (wanted.purpose == Purpose::kGoOn && !snapshot_is_at_hand(pool)) return;
  if (answer.plan) return form_planned(pool, std::move(wanted.nodes), *answer.plan);
  if (wanted.purpose == Purpose::kStart || answer.user_error)
    return fail(pool, answer.failure, answer.user_error);
  too_few.clear();
  for (const Member& each : wanted.nodes) too_few.push_back(each.node);
  std::ranges::sort(too_few);
  wait_for_nodes(pool, fmt::format("waits for nodes to go on from step {}: {}", snapshots.stable_step(),
                                   answer.failure));
}

// ---- a group

// `chosen` has the nodes of the plan, in the same order. A node without modelets would only wait for the
// others, so it is left out and is free.
void Run::form_planned(Pool& pool, std::vector<Member> chosen, const Plan& plan) {
  std::vector<uint32_t> rank_of(chosen.size());
  std::vector<Member> group;
  owner.clear();
  spare.clear();
  for (size_t i = 0; i < chosen.size(); ++i) {
    rank_of[i] = static_cast<uint32_t>(group.size());
    Member& candidate = chosen[i];
    if (plan.nodes[i].modelets.empty()) {
      spare.push_back(std::move(candidate));
      continue;
    }
    candidate.planned_seconds = plan.nodes[i].seconds_per_step;
    candidate.memory_bytes = plan.nodes[i].memory_bytes;
    candidate.planned_bytes = 0;
    for (const uint32_t modelet : plan.nodes[i].modelets)
      candidate.planned_bytes += modelet_bytes(plan.partition[modelet], experiment) +
                                 pair_bytes(plan.partition[modelet], experiment, shape);
    group.push_back(std::move(candidate));
  }
  for (const uint32_t node : plan.owner) owner.push_back(rank_of[node]);
  form_group(pool, std::move(group));
}

// Forms the next group from nodes that are all there. Nodes of the former group that are not in the new one
// are told to end.
void Run::form_group(Pool& pool, std::vector<Member> group) {
  const std::string lost = std::exchange(losses, "");
  const std::string why = regroup ? regroup->why : lost.empty() ? detail : lost;
  release_others(pool, group, "the run goes on without this node");
  const std::vector<Member> former = std::exchange(members, std::move(group));
  regroup.reset();
  files_missing_since = 0;
  misses.clear();
  no_help.clear();
  too_few.clear();
  prepare_began = pool.now;
  ++epoch;
  fewer.clear();
  if (epoch > 1 && members.size() < began_with)
    fewer = fmt::format("goes on with {} of {}: {}", members.size(), nodes_text(began_with),
                        printable(why, kLongestWhy));
  for (Member& each : members) {
    const Node& node = pool.nodes.at(each.node);
    each.name = node.info.name;
    each.incarnation = node.info.incarnation;
    each.endpoint.clear();
    each.public_key.clear();
    each.done = false;
    each.outcome = msg::Outcome::Ok;
  }
  balance = members.size() == 1 ? Balance(members.front().planned_seconds) : Balance();
  if (!send_prepare(pool, former)) return;
  if (epoch > 1) {
    nlohmann::json event = {{"event", "regrouped"}, {"why", why}, {"epoch", epoch}, {"step", step}};
    event["nodes"] = nlohmann::json::array();
    for (const Member& each : members) event["nodes"].push_back(each.name);
    publish(pool, event);
  }
  set_state(pool, RunState::Forming, fmt::format("loading data on {}", nodes_text(members.size())));
}

// Tells the holders of the snapshot's files that are not members who may fetch them.
void Run::admit_members(Pool& pool, const msg::PrepareT& prepare) const {
  for (const auto& [node_id, node] : pool.nodes) {
    const bool holds = std::ranges::any_of(
        prepare.holders, [&node = node](const auto& holder) { return holder->node == node.info.name; });
    if (!holds || std::ranges::find(members, node_id, &Member::node) != members.end()) continue;
    msg::AdmitT admit;
    admit.run = id;
    admit.epoch = epoch;
    for (const auto& holder : prepare.holders)
      admit.holders.push_back(std::make_unique<msg::HolderT>(*holder));
    pool.send(node.peer, std::move(admit));
  }
}

// Binds the members. Returns false if the run has failed, because the message would be too large; its members
// are then the `former` ones. Steps after the snapshot that the group starts from are computed again.
bool Run::send_prepare(Pool& pool, const std::vector<Member>& former) {
  msg::PrepareT prepare;
  prepare.run = id;
  prepare.name = submit.name;
  prepare.epoch = epoch;
  prepare.group_key = mix64(pool.pool_id ^ mix64(id));
  prepare.size = static_cast<uint32_t>(members.size());
  prepare.experiment = submit.experiment;
  prepare.shape = std::make_unique<msg::ShapeT>(*submit.shape);
  prepare.owner = owner;
  prepare.train_data = submit.train_data;
  prepare.test_data = submit.test_data;
  prepare.data_port = pool.options.data_port;
  prepare.pool = pool.pool_id;
  prepare.seconds_between_losses = pool.seconds_between_losses(members.size());
  for (const Member& each : members) prepare.node_names.push_back(each.name);
  const auto is_there = [&](const std::string& holder) { return pool.is_there(holder); };
  const comm::Snapshot* from = snapshots.newest_complete(is_there);
  if (from == nullptr) from = snapshots.newest_at_hand(is_there);
  prepare.snapshot = from != nullptr ? comm::format_snapshot(*from) : submit.resume_files;
  prepare.holders = holders_of(pool, from, members);
  admit_members(pool, prepare);
  if (from != nullptr || epoch > 1) step = from == nullptr ? 0 : from->step;
  snapshots.go_back_to(step);
  // A message that is too large would reach nobody, and the run would hold its nodes in vain.
  constexpr size_t kOfEncryption = 64;
  if (const size_t bytes = msg::encode(msg::FromSchedulerMessage(prepare)).size();
      bytes > msg::kMaxControlBytes - kOfEncryption) {
    members = former;  // who still works is told to end; nobody hears of the new group
    fail(pool,
         fmt::format("what its nodes must be told has {} bytes, {} of them for the list of its files, and an "
                     "agent accepts {}: give it fewer modelets",
                     bytes, prepare.snapshot.size(), msg::kMaxControlBytes),
         true);
    return false;
  }
  for (const Member& each : members) {
    Node& node = pool.nodes.at(each.node);
    node.bind(id, epoch, pool.now);
    pool.send(node.peer, prepare);
    ++prepare.rank;
  }
  return true;
}

void Run::prepared(Pool& pool, Member& ready, const msg::PreparedT& message) {
  if (const std::string why = why_unusable(message, pool.nodes.at(ready.node)); !why.empty())
    return not_prepared(pool, ready, fmt::format("node '{}' {}", ready.name, why));
  ready.endpoint = message.endpoint;
  ready.public_key = message.public_key;
  pool.log(fmt::format("run {}: node '{}' is ready, its modelets take {} (planned: {})", id, ready.name,
                       bytes_text(message.memory_bytes), bytes_text(ready.planned_bytes)));
  start_if_prepared(pool);
}

// Tells whether one agent's data address can be reached only from its own machine and another agent is
// elsewhere. It is better to say so now than after the time-out of the members that would try to connect.
std::optional<Run::Unreachable> Run::unreachable() const {
  const auto is_local = [](const Member& each) { return comm::is_loopback(each.endpoint); };
  const auto local = std::ranges::find_if(members, is_local);
  const auto other = std::ranges::find_if_not(members, is_local);
  if (local == members.end() || other == members.end()) return std::nullopt;
  // The one to do without is the newcomer; if both or neither are, the one with fewer of its kind.
  const bool local_is_new = !has_worked.contains(local->name),
             other_is_new = !has_worked.contains(other->name);
  const auto locals = static_cast<size_t>(std::ranges::count_if(members, is_local));
  const bool without_local = local_is_new == other_is_new ? 2 * locals <= members.size() : local_is_new;
  const Member& newcomer = without_local ? *local : *other;
  return Unreachable{
      &newcomer,
      fmt::format("node '{}' offers its data at {}, which node '{}' at {} cannot reach: start its agent with "
                  "--data-address and the address of its machine",
                  local->name, local->endpoint, other->name, other->endpoint)};
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
  if (const auto found = unreachable()) return not_prepared(pool, *found->member, found->why);
  for (const Member& each : members) {
    pool.send(pool.nodes.at(each.node).peer, start);
    has_worked.insert(each.name);
  }
  prepare_seconds = pool.now - prepare_began;
  set_state(pool, RunState::Running, fewer);
}

}  // namespace modelet::scheduler
