// How a run gets a group: a plan is requested, nodes are bound, prepare, and start.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/text/printable.h"
#include "comm/control/snapshot_tables.h"
#include "comm/security/keys.h"
#include "scheduler/core/run/pool.h"
#include "scheduler/core/run/run.h"
#include "scheduler/core/values/text.h"
#include "scheduler/plan/bytes_text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;
using msg::RunState;

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
std::set<std::string> holders_of(const Pool& pool, const comm::Snapshot* from,
                                 const std::vector<Member>& members) {
  std::set<std::string> names;
  for (const Member& each : members) names.insert(each.name);
  if (from != nullptr)
    for (const comm::SnapshotFile& file : from->files) names.insert(file.holders.begin(), file.holders.end());
  if (pool.options.data_port != 0) names.insert("");
  return names;
}

}  // namespace

// A run with private data begins with all owners, and may go on with fewer.
size_t Run::least_nodes() const {
  const uint32_t owners = submission_.experiment.cluster.least_owners;
  if (owners > 0 && !owners_.empty()) return std::max(owners, submission_.experiment.cluster.min_nodes);
  return std::max<size_t>({submission_.experiment.cluster.min_nodes, replicas(), 1});
}

// What a group of so many nodes is told. Owners that are away are no replicas.
Experiment Run::experiment_for(size_t nodes) const {
  Experiment experiment = submission_.experiment;
  if (is_private(experiment)) experiment.cluster.replicas = static_cast<uint32_t>(nodes);
  return experiment;
}

// A run with private data needs nodes that have data of this name. Once it has begun, these are its own: what an owner
// that is away would teach it, nobody else can.
bool Run::may_use(const Pool& pool, uint64_t node) const {
  if (!is_private(submission_.experiment)) return true;
  const msg::RegisterT& info = pool.nodes.at(node).info;
  const std::string name = private_name(submission_.experiment);
  return std::ranges::find(info.private_data, name) != info.private_data.end() &&
         (owners_.empty() || owners_.contains(info.name));
}

std::vector<uint64_t> Run::free_nodes(const Pool& pool) const {
  std::vector<uint64_t> nodes = pool.free_nodes();
  std::erase_if(nodes, [&](uint64_t node) { return !may_use(pool, node); });
  return nodes;
}

std::string Run::lacks_owners(const Pool& pool, bool free) const {
  if (!is_private(submission_.experiment)) return "";
  const auto owners = static_cast<size_t>(
      std::ranges::count_if(pool.nodes, [&](const auto& entry) { return may_use(pool, entry.first); }));
  const size_t free_owners = free_nodes(pool).size();
  if ((free ? free_owners : owners) >= least_nodes()) return "";
  return fmt::format("needs {} with private data '{}' (modelet-agent --private): the pool has {}, of which {} are free",
                     nodes_text(least_nodes()), private_name(submission_.experiment), owners, free_owners);
}

// The experiment's maximum; without one, as many nodes as the run began with.
size_t Run::most_nodes(size_t max_nodes) const {
  if (is_private(submission_.experiment)) return replicas();
  size_t most = submission_.experiment.cluster.max_nodes;
  if (most == 0) most = began_with_;
  if (most == 0) most = submit_.nodes == 0 ? max_nodes : submit_.nodes;
  return std::max(most, least_nodes());
}

size_t Run::wanted_nodes(size_t max_nodes, size_t present) const {
  if (is_private(submission_.experiment)) return least_nodes();
  if (state_ == RunState::Waiting) return least_nodes();
  if (submit_.nodes != 0) return submit_.nodes;
  const size_t all = std::min(present, most_nodes(max_nodes)) / replicas() * replicas();
  return std::max(all, least_nodes());
}

void Run::place(Pool& pool) {
  if (state_ == RunState::Waiting) return go_on(pool);
  const size_t wanted = wanted_nodes(pool.options.max_nodes, pool.willing_nodes());
  began_with_ = wanted;
  Planning::Wanted start{.purpose = Purpose::kStart};
  for (const uint64_t node : choose(pool, free_nodes(pool), wanted))
    start.nodes.push_back({.node = node, .name = pool.nodes.at(node).info.name});
  detail_ = fmt::format("is placed on {}", nodes_text(wanted));
  ask_for_plan(pool, std::move(start));
}

void Run::explain_wait(const std::string& why) {
  if (state_ == RunState::Queued) detail_ = why;
}

// Chooses the fastest nodes in the precision of the run. Without replicas they are ordered by name, which
// makes ranks easy to follow; so are owners, because what is drawn for an owner's samples follows from its rank.
std::vector<uint64_t> Run::choose(const Pool& pool, std::vector<uint64_t> free, size_t wanted) const {
  const auto gflops = [&](uint64_t node) {
    const NodeCapacity offered = pool.capacity(node, 1);
    return submission_.experiment.model.precision == Precision::kBf16 ? offered.bf16_rate() : offered.gflops;
  };
  std::stable_sort(free.begin(), free.end(), [&](uint64_t a, uint64_t b) { return gflops(a) > gflops(b); });
  free.resize(wanted);
  // The replicas take turns in choosing, so that nodes of similar speed hold the same modelets in their
  // replicas.
  std::vector<uint64_t> ranks;
  for (size_t replica = 0; replica < replicas(); ++replica)
    for (size_t i = replica; i < wanted; i += replicas()) ranks.push_back(free[i]);
  const auto name = [&](uint64_t node) -> const std::string& { return pool.nodes.at(node).info.name; };
  if (replicas() == 1 || is_private(submission_.experiment))
    std::sort(ranks.begin(), ranks.end(), [&](uint64_t a, uint64_t b) { return name(a) < name(b); });
  return ranks;
}

void Run::ask_for_plan(Pool& pool, Planning::Wanted wanted) {
  PlanRequest request{.run = id_, .key = submitter_, .experiment = experiment_for(wanted.nodes.size()), .shape = submission_.shape};
  planning_.request(pool, std::move(request), std::move(wanted));
}

void Run::planned(Pool& pool, const Planned& answer) {
  std::optional<Planning::Wanted> wanted = planning_.answered(pool, answer.number);
  if (!wanted) return;
  if (wanted->purpose == Purpose::kGain) {
    if (answer.plan) return stop_for_gain(pool, std::move(*wanted), *answer.plan);
    return pool.log(fmt::format("run {}: no new plan: {}", id_, answer.failure));
  }
  // While the plan was made, the last holder of some file may have gone.
  if (wanted->purpose == Purpose::kGoOn && !snapshot_is_at_hand(pool)) return;
  if (answer.plan) {
    const Experiment experiment = experiment_for(wanted->nodes.size());
    return form_group(pool, group_.deal_out(std::move(wanted->nodes), *answer.plan, experiment, submission_.shape));
  }
  // A tower that is too large for a node gets the smallest group that carries it.
  if (wanted->purpose == Purpose::kStart && parent_ != 0 && !answer.user_error &&
      (submit_.wait || wanted->nodes.size() < pool.willing_nodes())) {
    submit_.nodes = static_cast<uint32_t>(wanted->nodes.size()) + 1;
    detail_ = answer.failure;
    return;
  }
  if (wanted->purpose == Purpose::kStart || answer.user_error)
    return fail(pool, answer.failure, answer.user_error);
  too_few_.clear();
  for (const Member& each : wanted->nodes) too_few_.push_back(each.node);
  std::ranges::sort(too_few_);
  wait_for_nodes(pool, fmt::format("waits for nodes to go on from step {}: {}", snapshots_.stable_step(),
                                   answer.failure));
}

// ---- a group

// Forms the next group from nodes that are all there. Nodes of the former group that are not in the new one
// are told to end.
void Run::form_group(Pool& pool, std::vector<Member> next) {
  const std::string lost = std::exchange(losses_, "");
  const std::string why = regroup_ ? regroup_->why : lost.empty() ? detail_ : lost;
  if (began_ == 0) began_ = pool.now;
  group_.release_others(pool, id_, next, "the run goes on without this node");
  const std::vector<Member> former = group_.form(pool, std::move(next));
  if (is_private(submission_.experiment) && owners_.empty())
    for (const Member& each : members()) owners_.insert(each.name);
  regroup_.reset();
  files_missing_since_ = 0;
  misses_.clear();
  no_help_.clear();
  too_few_.clear();
  fewer_.clear();
  if (epoch() > 1 && members().size() < began_with_)
    fewer_ = fmt::format("goes on with {} of {}: {}", members().size(), nodes_text(began_with_),
                         printable(why, kLongestWhy));
  balance_ = members().size() == 1 ? Balance(members().front().planned_seconds) : Balance();
  if (!send_prepare(pool, former)) return;
  if (epoch() > 1) {
    nlohmann::json event = {{"event", "regrouped"}, {"why", why}, {"epoch", epoch()}, {"step", step_}};
    event["nodes"] = nlohmann::json::array();
    for (const Member& each : members()) event["nodes"].push_back(each.name);
    publish(pool, event);
  }
  set_state(pool, RunState::Forming, fmt::format("loading data on {}", nodes_text(members().size())));
}

// Tells the holders of the snapshot's files that are not members who may fetch them.
void Run::admit_members(Pool& pool, const msg::PrepareT& prepare) const {
  for (const auto& [node_id, node] : pool.nodes) {
    const bool holds = std::ranges::any_of(
        prepare.holders, [&node = node](const auto& holder) { return holder->node == node.info.name; });
    if (!holds || std::ranges::find(members(), node_id, &Member::node) != members().end()) continue;
    msg::AdmitT admit;
    admit.run = id_;
    admit.epoch = epoch();
    for (const auto& holder : prepare.holders)
      admit.holders.push_back(std::make_unique<msg::HolderT>(*holder));
    pool.send(node.peer, std::move(admit));
  }
}

// Binds the members. Returns false if the run has failed, because the message would be too large; its members
// are then the `former` ones. Steps after the snapshot that the group starts from are computed again.
bool Run::send_prepare(Pool& pool, const std::vector<Member>& former) {
  msg::PrepareT prepare;
  prepare.run = id_;
  prepare.name = submit_.name;
  prepare.epoch = epoch();
  prepare.group_key = mix64(pool.pool_id ^ mix64(id_));
  prepare.size = static_cast<uint32_t>(members().size());
  prepare.experiment =
      members().size() == owners_.size() || owners_.empty() ? submit_.experiment : to_toml(experiment_for(members().size()));
  prepare.shape = std::make_unique<msg::ShapeT>(*submit_.shape);
  prepare.owner = group_.owner();
  prepare.train_data = submit_.train_data;
  prepare.test_data = submit_.test_data;
  prepare.division = submit_.division;
  prepare.task = task_;
  prepare.learner = submitter_;
  prepare.data_port = pool.options.data_port;
  prepare.pool = pool.pool_id;
  prepare.seconds_between_losses = pool.seconds_between_losses(members().size());
  for (const Member& each : members()) prepare.node_names.push_back(each.name);
  const comm::Snapshot* from = snapshots_.newest_complete(pool.there());
  if (from == nullptr) from = snapshots_.newest_at_hand(pool.there());
  if (from != nullptr) prepare.snapshot = msg::to_table(*from);
  const size_t bytes_of_files = from == nullptr ? 0 : msg::bytes_in_message(*from);
  prepare.holders = pool.holders(holders_of(pool, from, members()));
  admit_members(pool, prepare);
  if (from != nullptr || epoch() > 1) {
    const uint64_t goes_on_from = from == nullptr ? 0 : from->step;
    repeated_steps_ += step_ - std::min(step_, goes_on_from);
    step_ = goes_on_from;
  }
  snapshots_.go_back_to(step_);  // `from` may be elsewhere now
  // A message that is too large would reach nobody, and the run would hold its nodes in vain.
  constexpr size_t kOfEncryption = 64;
  if (const size_t bytes = msg::encode(msg::FromSchedulerMessage(prepare)).size();
      bytes > msg::kMaxControlBytes - kOfEncryption) {
    group_.give_up(former);  // who still works is told to end; nobody hears of the new group
    fail(pool,
         fmt::format("what its nodes must be told has {} bytes, {} of them for the list of its files, and an "
                     "agent accepts {}: give it fewer modelets",
                     bytes, bytes_of_files, msg::kMaxControlBytes),
         true);
    return false;
  }
  for (const Member& each : members()) {
    Node& node = pool.nodes.at(each.node);
    node.bind(id_, epoch(), pool.now);
    pool.send(node.peer, prepare);
    ++prepare.rank;
  }
  return true;
}

void Run::prepared(Pool& pool, const Member& ready, const msg::PreparedT& message) {
  if (const std::string why = why_unusable(message, pool.nodes.at(ready.node)); !why.empty())
    return not_prepared(pool, ready, fmt::format("node '{}' {}", ready.name, why));
  group_.set_prepared(ready, message);
  pool.log(fmt::format("run {}: node '{}' is ready, its modelets take {} (planned: {})", id_, ready.name,
                       bytes_text(message.memory_bytes), bytes_text(ready.planned_bytes)));
  start_if_prepared(pool);
}

void Run::start_if_prepared(Pool& pool) {
  const std::optional<msg::StartT> start = group_.start(id_);
  if (!start) return;
  if (const auto found = group_.unreachable()) return not_prepared(pool, *found->member, found->why);
  for (const Member& each : members()) pool.send(pool.nodes.at(each.node).peer, *start);
  group_.set_started(pool.now);
  set_state(pool, RunState::Running, fewer_);
  if (parent_ != 0) pool.runs.at(parent_).publish_task(pool, *this, "started");
}

}  // namespace modelet::scheduler
