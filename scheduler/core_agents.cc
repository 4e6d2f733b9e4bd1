// The part of Core that hears agents: which nodes there are, what they work for, and what their runs report.
// Who is gone fails its run.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "scheduler/core.h"
#include "scheduler/core_text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;
using msg::Outcome;
using msg::RunState;

constexpr size_t kLongestText = 4096;        // of a message that is kept
constexpr size_t kLongestEvent = 64 * 1024;  // bytes of JSON

std::string shortened(std::string text) {
  if (text.size() > kLongestText) text.resize(kLongestText);
  return text;
}

bool is_sane(const msg::RegisterT& info) {
  return info.cores > 0 && info.memory_bytes > 0 && is_measure(info.gflops) && is_measure(info.bf16_gflops) &&
         is_measure(info.memory_gbps) && info.gflops > 0 && info.memory_gbps > 0;
}

std::string text(const nlohmann::json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

void Core::on(const std::string& peer, const msg::RegisterT& message) {
  const auto refuse = [&](const std::string& reason) {
    send(peer, msg::RefusedT{{}, reason});
    log(fmt::format("refused an agent: {}", reason));
  };
  if (!is_name(message.name)) return refuse(fmt::format("an agent's name is {}", kNameRule));
  if (!is_sane(message)) return refuse("an agent must offer cores, memory and a measured speed");
  const auto same_peer = node_of_peer_.find(peer);
  if (same_peer != node_of_peer_.end() && nodes_.at(same_peer->second).info.name != message.name)
    return refuse("this connection has registered another agent already");

  const auto same_name = std::find_if(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
    return entry.second.info.name == message.name;
  });
  if (same_name != nodes_.end() && same_name->second.key != sender_.name)
    return refuse(fmt::format(
        "an agent with another key has the name '{}'; give each agent a name of its own", message.name));
  uint64_t id = 0;
  if (same_name != nodes_.end() && same_name->second.info.incarnation == message.incarnation) {
    id = same_name->first;  // the same process over a new connection: its run goes on
    node_of_peer_.erase(same_name->second.peer);
    same_name->second.peer = peer;
  } else {
    if (same_name != nodes_.end()) {
      // Goes nowhere if that agent is dead. If it is alive, two machines have the same name: it must not come
      // back.
      send(same_name->second.peer,
           msg::RefusedT{{},
                         fmt::format("another agent named '{}' has registered; give each "
                                     "agent a name of its own",
                                     message.name)});
      remove_node(same_name, "was replaced by a new agent of the same name");
    }
    if (nodes_.size() >= options_.max_nodes)
      return refuse(fmt::format("the pool is full ({})", nodes_text(nodes_.size())));
    id = next_node_++;
    nodes_[id] = Node{.peer = peer, .info = message, .key = sender_.name};
    log(fmt::format("node '{}' joined{}: {} cores, {}, {:.0f} GFLOP/s, {:.0f} GB/s, version {}", message.name,
                    with_key(sender_), message.cores, bytes_text(message.memory_bytes), message.gflops,
                    message.memory_gbps, shortened(message.version)));
  }
  nodes_[id].last_seen = now_;
  node_of_peer_[peer] = id;
  send(peer, msg::RegisteredT{{}, id, options_.session, options_.heartbeat, options_.dead_after});
  start_waiting_runs();
}

Core::Nodes::iterator Core::node_of(const std::string& peer) {
  const auto known = node_of_peer_.find(peer);
  if (known == node_of_peer_.end()) {
    send(peer, msg::RegisterAgainT{});
    return nodes_.end();
  }
  const auto node = nodes_.find(known->second);
  node->second.last_seen = now_;
  return node;
}

void Core::on(const std::string& peer, const msg::HeartbeatT& message) {
  const auto found = node_of(peer);
  if (found == nodes_.end()) return;
  const uint64_t node_id = found->first;
  Node& node = found->second;
  send(peer, msg::AliveT{});
  if (message.run != 0 && message.run != node.run) {
    send(peer, msg::AbortT{{}, message.run, "the scheduler does not know this run on this node"});
    return;
  }
  if (node.run == 0) return;
  if (message.run == node.run) {
    node.confirmed = true;
    node.step = message.step;
    Run& run = runs_.at(node.run);
    if (!has_ended(run.state)) run.step = std::max(run.step, message.step);
    return;
  }
  // It works on nothing although it was given a run: Prepare or RunDone was lost with a connection.
  if (!node.confirmed && now_ - node.bound_since <= options_.dead_after) return;
  const uint64_t run_id = node.run;
  Run& run = runs_.at(run_id);
  Member* member = member_of(run, node_id);
  if (run.replan && member != nullptr && member->done) return;  // kept for the new plan
  release(node);
  if (member != nullptr && !member->done && !has_ended(run.state))
    fail(run_id, run, fmt::format("node '{}' lost its part of the run at step {}", node.info.name, run.step));
  start_waiting_runs();
}

void Core::on(const std::string& peer, const msg::PreparedT& message) {
  const auto node = node_of(peer);
  if (node == nodes_.end() || !is_bound(node->second, message.run)) return;
  Run& run = runs_.at(message.run);
  Member* member = member_of(run, node->first);
  if (run.state != RunState::Preparing || run.epoch != message.epoch || member == nullptr) return;
  if (message.endpoint.empty() || message.endpoint.size() > kLongestText ||
      message.public_key.size() > kLongestText)
    return fail(message.run, run, fmt::format("node '{}' gave no usable endpoint", node->second.info.name));
  member->endpoint = message.endpoint;
  member->public_key = message.public_key;
  log(fmt::format("run {}: node '{}' is ready, its modelets take {} (planned: {})", message.run, member->name,
                  bytes_text(message.memory_bytes), bytes_text(member->planned_bytes)));
  start_if_prepared(message.run, run);
}

void Core::on(const std::string& peer, const msg::RunEventT& message) {
  const auto node = node_of(peer);
  if (node == nodes_.end() || message.json.size() > kLongestEvent) return;
  const auto found = runs_.find(message.run);
  if (found == runs_.end() || has_ended(found->second.state) ||
      member_of(found->second, node->first) == nullptr)
    return;
  Run& run = found->second;
  if (run.state == RunState::Preparing) note_fetching(run, message.json);
  if (run.state == RunState::Running && run.members.front().node == node->first) {
    const auto event = nlohmann::json::parse(message.json, nullptr, false);
    const std::string kind = event.is_object() ? text(event, "event") : "";
    if (kind == "progress" && !run.replan) observe(message.run, run, event);
    if (kind == "interrupted" && run.replan) {  // for the watchers the run goes on
      run.replan->checkpoint = shortened(text(event, "checkpoint"));
      return;
    }
  }
  publish(message.run, run, message.json);
}

// Whoever looks at the list of runs sees why one does not begin yet.
void Core::note_fetching(Run& run, const std::string& json) {
  const auto event = nlohmann::json::parse(json, nullptr, false);
  if (!event.is_object() || text(event, "event") != "fetching") return;
  const auto done = event.find("bytes"), total = event.find("total_bytes");
  if (done == event.end() || total == event.end() || !done->is_number() || !total->is_number()) return;
  const double all = std::max(1.0, total->get<double>());
  run.detail = fmt::format("node '{}' fetches data: {:.0f} %", shortened(text(event, "node")),
                           100 * std::clamp(done->get<double>() / all, 0.0, 1.0));
}

void Core::publish(uint64_t id, Run& run, const std::string& json) {
  run.events.push_back(json);
  if (run.events.size() > options_.max_run_events) run.events.pop_front();
  for (const std::string& watcher : run.watchers) send(watcher, msg::RunEventT{{}, id, json});
}

void Core::on(const std::string& peer, const msg::RunDoneT& message) {
  const auto found = node_of(peer);
  if (found == nodes_.end()) return;
  Node& node = found->second;
  if (!is_bound(node, message.run)) return;
  Run& run = runs_.at(message.run);
  Member* member = member_of(run, found->first);
  if (member == nullptr || member->done || run.epoch != message.epoch) return;
  if (!run.replan) release(node);
  if (!has_ended(run.state)) {
    member->done = true;
    member->outcome = message.outcome;
    run.step = std::max(run.step, message.step);
    const bool early = run.state == RunState::Preparing;
    if (message.outcome == Outcome::Failed || early)
      fail(message.run, run,
           fmt::format("node '{}' failed at step {}: {}", node.info.name, run.step,
                       shortened(message.message)),
           message.user_error);
    else
      finish_if_done(message.run, run);
  }
  start_waiting_runs();
}

void Core::on(const std::string& peer, const msg::LeaveT&) {
  const auto node = node_of(peer);
  if (node == nodes_.end()) return;
  remove_node(node, "left the pool");
  start_waiting_runs();
}

void Core::remove_node(Nodes::iterator node, const std::string& why) {
  const uint64_t node_id = node->first;
  const std::string name = node->second.info.name;
  const uint64_t run_id = node->second.run;
  log(fmt::format("node '{}' {}", name, why));
  node_of_peer_.erase(node->second.peer);
  nodes_.erase(node);
  if (run_id == 0) return;
  Run& run = runs_.at(run_id);
  if (has_ended(run.state) || member_of(run, node_id) == nullptr) return;
  fail(run_id, run, fmt::format("node '{}' {} at step {}", name, why, run.step));
}

bool Core::is_bound(const Node& node, uint64_t run) { return run != 0 && node.run == run; }

void Core::release(Node& node) {
  node.run = 0;
  node.step = 0;
  node.times = {};
  node.confirmed = false;
}

Core::Member* Core::member_of(Run& run, uint64_t node) {
  const auto found = std::find_if(run.members.begin(), run.members.end(),
                                  [node](const Member& member) { return member.node == node; });
  return found == run.members.end() ? nullptr : &*found;
}

}  // namespace modelet::scheduler
