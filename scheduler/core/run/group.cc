#include "scheduler/core/run/group.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/experiment/memory.h"
#include "comm/transport/endpoint.h"
#include "scheduler/core/run/pool.h"

namespace modelet::scheduler {

namespace msg = comm::control;

const Member* Group::member(uint64_t node) const {
  const auto found = std::ranges::find(members_, node, &Member::node);
  return found == members_.end() ? nullptr : &*found;
}

bool Group::are_all_done() const { return std::ranges::all_of(members_, &Member::done); }

bool Group::is_one_done() const { return std::ranges::any_of(members_, &Member::done); }

std::optional<msg::StartT> Group::start(uint64_t run) const {
  msg::StartT start{{}, run, epoch_, {}, {}};
  for (const Member& each : members_) {
    if (each.endpoint.empty()) return std::nullopt;
    start.endpoints.push_back(each.endpoint);
    start.public_keys.push_back(each.public_key);
  }
  return start;
}

// Tells whether one agent's data address can be reached only from its own machine and another agent is
// elsewhere. It is better to say so now than after the time-out of the members that would try to connect.
std::optional<Group::Unreachable> Group::unreachable() const {
  const auto is_local = [](const Member& each) { return comm::is_loopback(each.endpoint); };
  const auto has_no_key = [](const Member& each) { return each.public_key.empty(); };
  // Of two members that cannot connect, the one to do without is the newcomer; if both or neither are, the one with
  // fewer of its kind.
  const auto apart = [this](const auto& is_one, const char* cure) -> std::optional<Unreachable> {
    const auto one = std::ranges::find_if(members_, is_one),
               other = std::ranges::find_if_not(members_, is_one);
    if (one == members_.end() || other == members_.end()) return std::nullopt;
    const bool one_is_new = !has_been_ready(one->name), other_is_new = !has_been_ready(other->name);
    const auto ones = static_cast<size_t>(std::ranges::count_if(members_, is_one));
    const bool without_one = one_is_new == other_is_new ? 2 * ones <= members_.size() : one_is_new;
    return Unreachable{&*(without_one ? one : other),
                       fmt::format("node '{}' offers its data at {}, which node '{}' at {} cannot reach: {}",
                                   one->name, one->endpoint, other->name, other->endpoint, cure)};
  };
  if (auto found = apart(is_local, "start its agent with --data-address and the address of its machine"))
    return found;
  // Data travels encrypted between all members or none. In a folder (ipc://) it needs no key.
  return apart(has_no_key, "one has no key; start the agents of a machine with --data-address of one kind");
}

void Group::stop(Pool& pool, uint64_t run) const {
  for (const Member& each : members_)
    if (const Node* node = pool.node(each.node); node != nullptr && !each.done)
      pool.send(node->peer, msg::StopT{{}, run, epoch_});
}

std::string Group::trace(Pool& pool, uint64_t run, uint32_t steps) const {
  constexpr uint16_t kKnowsTraces = 10;  // version of the control messages
  const Member& first = members_.front();
  const Node* node = pool.node(first.node);
  if (node == nullptr) return fmt::format("node '{}' is not there just now", first.name);
  for (const Member& each : members_)
    if (const Node* other = pool.node(each.node); other != nullptr && other->info.protocol < kKnowsTraces)
      return fmt::format("the agent of node '{}' is of an earlier release", each.name);
  pool.send(node->peer, msg::TraceT{{}, run, epoch_, steps});
  return "";
}

// Each stays bound until it answers.
void Group::abort(Pool& pool, uint64_t run, const std::string& reason) const {
  for (const Member& each : members_)
    if (const Node* node = pool.node(each.node); node != nullptr && node->run == run && !each.done)
      pool.send(node->peer, msg::AbortT{{}, run, reason, node->epoch});
}

void Group::release_others(Pool& pool, uint64_t run, const std::vector<Member>& next,
                           const std::string& reason) const {
  for (auto& [id, node] : pool.nodes) {
    if (node.run != run || std::ranges::find(next, id, &Member::node) != next.end()) continue;
    const Member* before = member(id);
    if (before != nullptr && before->done)
      node.release();
    else
      pool.send(node.peer, msg::AbortT{{}, run, reason, node.epoch});
  }
}

void Group::release_done(Pool& pool, uint64_t run) const {
  for (const Member& each : members_)
    if (Node* node = pool.node(each.node); each.done && node != nullptr && node->run == run) node->release();
}

// A node without modelets would only wait for the others, so it is left out and is free.
std::vector<Member> Group::deal_out(std::vector<Member> chosen, const Plan& plan,
                                    const Experiment& experiment, const DataShape& shape) {
  std::vector<uint32_t> rank_of(chosen.size());
  std::vector<Member> next;
  owner_.clear();
  spare_.clear();
  for (size_t i = 0; i < chosen.size(); ++i) {
    rank_of[i] = static_cast<uint32_t>(next.size());
    Member& candidate = chosen[i];
    if (plan.nodes[i].modelets.empty()) {
      spare_.push_back(std::move(candidate));
      continue;
    }
    candidate.planned_seconds = plan.nodes[i].seconds_per_step;
    candidate.memory_bytes = plan.nodes[i].memory_bytes;
    candidate.planned_bytes = 0;
    for (const uint32_t modelet : plan.nodes[i].modelets)
      candidate.planned_bytes += modelet_bytes(plan.partition[modelet], experiment) +
                                 pair_bytes(plan.partition[modelet], experiment, shape);
    next.push_back(std::move(candidate));
  }
  for (const uint32_t node : plan.owner) owner_.push_back(rank_of[node]);
  return next;
}

std::vector<Member> Group::form(const Pool& pool, std::vector<Member> next) {
  ++epoch_;
  prepare_began_ = pool.now;
  for (Member& each : next) {
    const msg::RegisterT& info = pool.nodes.at(each.node).info;
    each.name = info.name;
    each.incarnation = info.incarnation;
    each.endpoint.clear();
    each.public_key.clear();
    each.done = false;
    each.outcome = msg::Outcome::Ok;
  }
  return std::exchange(members_, std::move(next));
}

void Group::set_prepared(const Member& member, const msg::PreparedT& message) {
  own(member).endpoint = message.endpoint;
  own(member).public_key = message.public_key;
}

void Group::set_done(const Member& member, msg::Outcome outcome) {
  own(member).done = true;
  own(member).outcome = outcome;
}

void Group::set_returned(const Member& member, uint64_t node) {
  own(member).node = node;
  ready_names_.insert(member.name);
}

void Group::set_all_lost() {
  for (Member& each : members_) each.node = 0;
}

void Group::set_started(double now) {
  for (const Member& each : members_) ready_names_.insert(each.name);
  prepare_seconds_ = now - prepare_began_;
}

}  // namespace modelet::scheduler
