// The part of Core for agents that are not let in yet, and for the list of nodes: which there are, were and will be.
//
// An agent whose key the allow-list does not have waits, until an administrator lets it in (ApproveNode) or the list has
// its key. An agent with an invitation enrols its key itself (Enrol). Both become the action LetIn: the allow-list is the
// only place that says who may enter.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text/printable.h"
#include "comm/security/keys.h"
#include "scheduler/core/core.h"
#include "scheduler/core/node_record.h"
#include "scheduler/core/values/text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;

constexpr uint16_t kKnowsPending = 10;    // version of the messages from which on agents understand Pending
constexpr double kNewcomerForgotten = 60;  // seconds of silence after which an agent that waits is forgotten
constexpr size_t kMostReasonBytes = 512;

}  // namespace

// ---- agents that wait to be let in

void Core::let_wait(const std::string& peer, const msg::RegisterT& message) {
  if (!is_name(message.name)) return refuse(peer, fmt::format("an agent's name is {}", kNameRule));
  const std::string print = comm::fingerprint(sender_.key);
  const std::string how = fmt::format(
      "the scheduler does not know this agent's key {}. An administrator lets it in with 'modelet approve {}', or whoever "
      "runs the scheduler with the line 'agent {} {}' in its allow-list",
      print, message.name, sender_.key, message.name);
  if (message.protocol < kKnowsPending) return refuse(peer, how);
  auto found = pool_.newcomers.find(sender_.key);
  if (found == pool_.newcomers.end()) {
    const auto of_address = std::ranges::count_if(
        pool_.newcomers, [this](const auto& entry) { return entry.second.address == sender_address_; });
    if (pool_.newcomers.size() >= pool_.options.max_newcomers ||
        static_cast<size_t>(of_address) >= pool_.options.max_newcomers_of_address)
      return pool_.send(peer, msg::PendingT{{}, "so many agents with unknown keys wait that this one is not shown: " + how});
    found = pool_.newcomers.emplace(sender_.key, Newcomer{.since = pool_.now}).first;
    if (newcomers_.next())
      pool_.log(fmt::format("an agent waits to be let in: '{}', key {}{}{} (number {})", message.name, print,
                            sender_address_.empty() ? "" : " from ", kept_text(sender_address_), newcomers_.count()));
  }
  Newcomer& newcomer = found->second;
  newcomer.peer = peer;
  newcomer.name = message.name;
  newcomer.address = sender_address_;
  newcomer.last_seen = pool_.now;
  pool_.send(peer, msg::PendingT{{}, how});
}

void Core::forget_absent() {
  std::erase_if(pool_.newcomers,
                [this](const auto& entry) { return pool_.now - entry.second.last_seen > kNewcomerForgotten; });
  std::erase_if(pool_.lost, [this](const auto& entry) {
    if (pool_.now - entry.second.since <= pool_.options.lost_shown) return false;
    pool_.changes.nodes.push_back({.name = entry.first});
    return true;
  });
}

void Core::on(const std::string& peer, const msg::ApproveNodeT& message) {
  if (sender_.role != comm::Role::kAdmin)
    return refuse(peer, sender_.role == comm::Role::kAnybody ? "this pool has no keys: every agent is let in"
                                                             : "only an administrator's key may let an agent in");
  const auto is_meant = [&](const auto& entry) {
    return entry.second.name == message.node ||
           (message.node.size() >= comm::fingerprint(entry.first).size() && entry.first.starts_with(message.node));
  };
  const auto found = std::ranges::find_if(pool_.newcomers, is_meant);
  if (found == pool_.newcomers.end())
    return refuse(peer, fmt::format("no agent waits under the name '{}', nor with a key that begins so: 'modelet nodes "
                                    "--pending' shows those that wait",
                                    kept_text(message.node)));
  if (std::ranges::count_if(pool_.newcomers, is_meant) > 1)
    return refuse(peer, fmt::format("several agents wait under the name '{}': name the one that you mean by its key, as "
                                    "'modelet nodes --pending' shows it",
                                    kept_text(message.node)));
  const auto& [key, newcomer] = *found;
  if (!is_name_free(newcomer.name, key))
    return refuse(peer, fmt::format("an agent with another key has the name '{}': give this one another --name",
                                    newcomer.name));
  pool_.actions.push_back(LetIn{peer, key, newcomer.name, ""});
}

// The name of the key and of the node are the same at first.
bool Core::is_name_free(const std::string& name, const std::string& key) const {
  const auto known = pool_.names.find(name);
  const auto waits = pool_.newcomers.find(key);
  return known == pool_.names.end() || (waits != pool_.newcomers.end() && known->second.key == waits->second.name);
}

void Core::on(const std::string& peer, const msg::EnrolT& message) {
  using comm::Role;
  if (sender_.role == Role::kAnybody) return refuse(peer, "this pool has no keys: there is nothing to enrol");
  if (sender_.role == Role::kAgent) return pool_.send(peer, msg::EnrolledT{{}, sender_.name});
  if (sender_.role != Role::kNobody) return refuse(peer, "this key is a user's: make another one for the agent");
  if (!is_name(message.name)) return refuse(peer, fmt::format("an agent's name is {}", kNameRule));
  if (message.secret.empty()) return refuse(peer, "an enrolment needs the secret of an invitation");
  if (!is_name_free(message.name, sender_.key))
    return refuse(peer, fmt::format("an agent with another key has the name '{}': give this one another --name",
                                    message.name));
  pool_.actions.push_back(
      LetIn{peer, sender_.key, message.name, {message.secret.begin(), message.secret.end()}});
}

void Core::on(const LetInDone& answer) {
  const LetIn& asked = answer.asked;
  if (!answer.why_not.empty()) return refuse(asked.asker, kept_text(answer.why_not));
  pool_.log(fmt::format("agent '{}' is let in, key {}{}", asked.name, comm::fingerprint(asked.key),
                        asked.secret.empty() ? "" : ", by an invitation"));
  if (const auto newcomer = pool_.newcomers.find(asked.key); newcomer != pool_.newcomers.end()) {
    pool_.send(newcomer->second.peer, msg::RegisterAgainT{});
    pool_.newcomers.erase(newcomer);
  }
  if (!asked.secret.empty()) return pool_.send(asked.asker, msg::EnrolledT{{}, asked.name});
  on(asked.asker, msg::ListNodesT{{}, true});
}

// ---- the list of nodes

msg::NodeStatusT Core::status_of(const Node& node) const {
  using msg::NodeState;
  msg::NodeStatusT entry;
  const std::string& name = entry.name = node.info.name;
  entry.version = node.info.version;
  entry.cores = node.info.cores;
  entry.memory_bytes = node.info.memory_bytes;
  entry.gflops = node.info.gflops;
  entry.memory_gbps = node.info.memory_gbps;
  entry.bf16_gflops = node.info.bf16_gflops;
  entry.draining = !node.is_willing();
  entry.run = node.run;
  entry.step = node.step;
  entry.silent_seconds = pool_.now - node.last_seen;
  const double step_seconds = node.times.compute() + node.times.codec() + node.times.wait();
  entry.compute_seconds = node.times.compute();
  entry.codec_seconds = node.times.codec();
  entry.wait_seconds = node.times.wait();
  entry.wait_share = step_seconds > 0 ? node.times.wait() / step_seconds : 0;
  entry.address = node.address;
  entry.disk_free_bytes = node.disk_free_bytes;
  entry.private_data = node.info.private_data;
  entry.suspended = node.suspended;
  entry.sent_bytes = node.sent_bytes;
  entry.received_bytes = node.received_bytes;
  if (node.leaving) {
    entry.state = NodeState::Leaving;
    entry.why = fmt::format("{}; it ends when no run needs it or its files", node.leaves_why);
  } else if (node.draining) {
    entry.state = node.run == 0 ? NodeState::Drained : NodeState::Draining;
    entry.why = fmt::format("an administrator drained it; 'modelet drain {} --undo' gives it work again", name);
  } else if (node.run != 0) {
    entry.state = NodeState::Training;
    entry.why = fmt::format("run {}", node.run);
  } else if (node.planned_for != 0) {
    entry.why = fmt::format("a plan for run {} is made", node.planned_for);
  } else if (node.stray != 0) {
    entry.why = fmt::format("ends its part of run {}", node.stray);
  } else {
    entry.why = "no run waits for it";
  }
  return entry;
}

void Core::show_as_lost(msg::NodeStatusT status, const std::string& why) {
  status.state = msg::NodeState::Lost;
  status.run = status.step = 0;  // it works for none
  status.why = fmt::format("{}: look at its machine; an agent that is started again comes back by itself", why);
  if (pool_.lost.size() >= pool_.options.max_nodes) {
    const auto oldest = std::ranges::min_element(pool_.lost, {}, [](const auto& entry) { return entry.second.since; });
    pool_.changes.nodes.push_back({.name = oldest->first});
    pool_.lost.erase(oldest);
  }
  pool_.changes.nodes.push_back(node_record(status, pool_.calendar_seconds()));
  const std::string name = status.name;
  pool_.lost[name] = {std::move(status), pool_.now};
}

std::vector<msg::NodeStatusT> Core::nodes(bool all) const {
  std::vector<msg::NodeStatusT> list;
  for (const auto& [id, node] : pool_.nodes) list.push_back(status_of(node));
  if (!all) return list;
  for (const auto& [name, lost] : pool_.lost) {
    msg::NodeStatusT entry = lost.status;
    entry.state_seconds = pool_.now - lost.since;
    entry.silent_seconds += entry.state_seconds;
    list.push_back(std::move(entry));
  }
  for (const auto& [key, newcomer] : pool_.newcomers) {
    msg::NodeStatusT entry;
    entry.name = newcomer.name;
    entry.state = msg::NodeState::Pending;
    entry.why = printable(fmt::format("its key is not in the allow-list: 'modelet approve {}' lets it in, if the key is "
                                         "what 'modelet key FILE' prints on its machine",
                                         newcomer.name),
                             kMostReasonBytes);
    entry.state_seconds = pool_.now - newcomer.since;
    entry.silent_seconds = pool_.now - newcomer.last_seen;
    entry.address = kept_text(newcomer.address);
    entry.key = key;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace modelet::scheduler
