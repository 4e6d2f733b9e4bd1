#include "scheduler/core.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "comm/codec.h"
#include "comm/content.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;
using msg::Outcome;
using msg::RunState;

constexpr size_t kLongestName = 64;          // characters
constexpr size_t kLongestText = 4096;        // of a message that is kept
constexpr size_t kLongestEvent = 64 * 1024;  // bytes of JSON
constexpr uint64_t kMostModelets = 65536;    // of one run
constexpr uint64_t kMostLabels = uint64_t{1} << 32;
constexpr double kLeastGain = 0.05;  // of the step time, for a new plan
constexpr double kMostSpeed = 1e6;  // by which a node may differ from what it said of itself, and its inverse

// Names become parts of paths and log lines.
bool is_name(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), allowed);
}

constexpr const char* kNameRule = "1 to 64 letters, digits, '.', '_', '-', not beginning with '.'";

std::string shortened(std::string text) {
  if (text.size() > kLongestText) text.resize(kLongestText);
  return text;
}

bool is_measure(double value) { return std::isfinite(value) && value >= 0; }

bool is_sane(const msg::RegisterT& info) {
  return info.cores > 0 && info.memory_bytes > 0 && is_measure(info.gflops) && is_measure(info.memory_gbps) &&
         info.gflops > 0 && info.memory_gbps > 0;
}

DataShape to_shape(const msg::ShapeT& shape) {
  return {shape.features,         shape.labels,         shape.train_rows, shape.test_rows,
          shape.features_per_row, shape.labels_per_row, shape.encoder};
}

// Throws UsageError if the submission cannot be run anywhere.
void check_size(const Experiment& experiment, const DataShape& shape) {
  const auto in_range = [](uint64_t value) { return value >= 1 && value <= kMostLabels; };
  if (!in_range(shape.features) || !in_range(shape.labels) || !in_range(shape.train_rows) ||
      !is_measure(shape.features_per_row) || !is_measure(shape.labels_per_row))
    throw UsageError("the shape of the data is missing or absurd");
  uint64_t modelets = std::min<uint64_t>(experiment.modelets.output_modelets, shape.labels);
  for (const uint64_t width : experiment.model.hidden)
    modelets += width / experiment.modelets.hidden_columns + 1;
  if (modelets > kMostModelets)
    throw UsageError(
        fmt::format("the cut has {} modelets, more than the limit of {}: make modelets.hidden_columns "
                    "larger or modelets.output_modelets smaller",
                    modelets, kMostModelets));
}

// Data for agents that do not have it: both files or none, in the store of this scheduler.
void check_data(const msg::SubmitT& message, uint16_t data_port) {
  if (message.train_data.empty() && message.test_data.empty()) return;
  comm::parse_content_id(message.train_data);
  comm::parse_content_id(message.test_data);
  if (data_port == 0) throw UsageError("this scheduler keeps no data: start it with --store");
}

bool is_of_agents(const msg::ToSchedulerMessage& message) {
  return std::visit(
      []<class Message>(const Message&) {
        const auto is_one_of = []<class... Types>(std::tuple<Types...>*) {
          return (std::is_same_v<Message, Types> || ...);
        };
        using OfAgents = std::tuple<msg::RegisterT, msg::HeartbeatT, msg::PreparedT, msg::RunEventT,
                                    msg::RunDoneT, msg::LeaveT, msg::FetchManifestT, msg::FetchChunkT>;
        return is_one_of(static_cast<OfAgents*>(nullptr));
      },
      message);
}

std::string with_key(const comm::Identity& sender) {
  return sender.name.empty() ? "" : fmt::format(" with key '{}'", sender.name);
}

std::string text(const nlohmann::json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string nodes_text(size_t count) { return fmt::format("{} node{}", count, count == 1 ? "" : "s"); }

}  // namespace

std::string why_not(const comm::Identity& sender, const msg::ToSchedulerMessage& message) {
  using comm::Role;
  if (sender.role == Role::kNobody) return "this key is no longer in the scheduler's allow-list";
  const bool of_agents = is_of_agents(message);
  if (sender.role == Role::kUser && of_agents)
    return fmt::format(
        "the key '{}' is a user's, which may not be an agent: list an agent's key as 'agent' in the "
        "scheduler's allow-list",
        sender.name);
  if (sender.role == Role::kAgent && !of_agents)
    return fmt::format(
        "the key '{}' is an agent's, which may not submit, list, watch or stop: list a user's key as "
        "'user' in the scheduler's allow-list",
        sender.name);
  return "";
}

bool has_ended(RunState state) {
  return state == RunState::Finished || state == RunState::Failed || state == RunState::Stopped;
}

const char* state_name(RunState state) {
  switch (state) {
    case RunState::Queued:
      return "queued";
    case RunState::Preparing:
      return "preparing";
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
  }
  return "unknown";
}

std::vector<Action> Core::handle(double now, const Event& event) {
  now_ = now;
  if (const auto* received = std::get_if<Received>(&event)) {
    sender_ = received->sender;
    if (const std::string reason = why_not(sender_, received->message); !reason.empty())
      refuse(*received, reason);
    else
      std::visit([&](const auto& message) { on(received->peer, message); }, received->message);
  } else if (const auto* gone = std::get_if<PeerGone>(&event)) {
    for (auto& [id, run] : runs_) run.watchers.erase(gone->peer);
  } else {
    tick();
  }
  return std::exchange(actions_, {});
}

void Core::refuse(const Received& received, const std::string& reason) {
  send(received.peer, msg::RefusedT{{}, reason});
  if (refusals_.next()) log(fmt::format("refused a message: {} (number {})", reason, refusals_.count()));
}

// ---- agents

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
                       shortened(message.message)));
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

// ---- clients

void Core::on(const std::string& peer, const msg::SubmitT& message) {
  const auto refuse = [&](const std::string& reason) { send(peer, msg::RefusedT{{}, reason}); };
  Run run{.submit = message, .submitted = now_};
  try {
    if (!is_name(message.name)) throw UsageError(fmt::format("a run's name is {}", kNameRule));
    if (message.nodes > options_.max_nodes)
      throw UsageError(fmt::format("a pool has at most {} nodes", options_.max_nodes));
    if (message.shape == nullptr) throw UsageError("the shape of the data is missing");
    run.experiment = parse_experiment(message.experiment, "submitted experiment");
    run.shape = to_shape(*message.shape);
    check_size(run.experiment, run.shape);
    if (message.nodes % run.experiment.cluster.replicas != 0)
      throw UsageError(fmt::format("cluster.replicas is {}, and {} do not make so many equal groups",
                                   run.experiment.cluster.replicas, nodes_text(message.nodes)));
    comm::exchange_codecs(run.experiment.exchange);
    check_data(message, options_.data_port);
  } catch (const Error& error) {
    return refuse(error.what());
  }
  if (!make_room_for_run())
    return refuse(fmt::format("{} runs are waiting or running, no more are taken", runs_.size()));
  const uint64_t id = next_run_++;
  runs_[id] = std::move(run);
  log(fmt::format("run {} '{}' submitted{}", id, message.name, with_key(sender_)));
  send(peer, msg::AcceptedT{{}, id});
  start_waiting_runs();
}

void Core::on(const std::string& peer, const msg::FindDataPortT&) {
  send(peer, msg::DataPortT{{}, options_.data_port});
}

std::set<std::string> Core::data_in_use() const {
  std::set<std::string> addresses;
  for (const auto& [id, run] : runs_)
    if (!has_ended(run.state)) addresses.insert({run.submit.train_data, run.submit.test_data});
  return addresses;
}

bool Core::make_room_for_run() {
  if (runs_.size() < options_.max_runs) return true;
  const auto has_nodes = [this](uint64_t run) {
    return std::any_of(nodes_.begin(), nodes_.end(),
                       [run](const auto& entry) { return entry.second.run == run; });
  };
  const auto oldest = std::find_if(runs_.begin(), runs_.end(), [&](const auto& entry) {
    return has_ended(entry.second.state) && !has_nodes(entry.first);
  });
  if (oldest == runs_.end()) return false;
  runs_.erase(oldest);
  return true;
}

void Core::on(const std::string& peer, const msg::ListRunsT&) {
  msg::RunListT list;
  for (msg::RunStatusT& run : runs()) list.runs.push_back(std::make_unique<msg::RunStatusT>(std::move(run)));
  send(peer, std::move(list));
}

void Core::on(const std::string& peer, const msg::ListNodesT&) {
  msg::NodeListT list;
  for (msg::NodeStatusT& node : nodes())
    list.nodes.push_back(std::make_unique<msg::NodeStatusT>(std::move(node)));
  send(peer, std::move(list));
}

void Core::on(const std::string& peer, const msg::WatchT& message) {
  const auto found = runs_.find(message.run);
  if (found == runs_.end())
    return send(peer, msg::RefusedT{{}, fmt::format("there is no run {}", message.run)});
  Run& run = found->second;
  for (const std::string& json : run.events) send(peer, msg::RunEventT{{}, message.run, json});
  if (!has_ended(run.state)) run.watchers.insert(peer);
  send(peer, status(message.run, run));
}

void Core::on(const std::string& peer, const msg::StopRunT& message) {
  const auto found = runs_.find(message.run);
  if (found == runs_.end())
    return send(peer, msg::RefusedT{{}, fmt::format("there is no run {}", message.run)});
  auto& [id, run] = *found;
  if (run.state == RunState::Queued) {
    set_state(id, run, RunState::Stopped, "stopped while it waited");
  } else if (run.state == RunState::Preparing) {
    abort_members(id, run, "the run was stopped");
    set_state(id, run, RunState::Stopped,
              run.replans == 0
                  ? "stopped before its first step"
                  : fmt::format("stopped at step {} while its modelets were placed anew, checkpoint written",
                                run.step));
  } else if (run.state == RunState::Running) {
    run.stop_asked = now_;
    run.replan.reset();
    ask_to_stop(id, run);
    set_state(id, run, RunState::Stopping, "asked to stop at the next step");
  }
  send(peer, status(id, run));
  start_waiting_runs();
}

// ---- time

void Core::tick() {
  // A scheduler that was itself asleep (suspended, starved) has read no heartbeats: that is no sign of death.
  if (const double gap = now_ - last_tick_; gap > 2 * options_.heartbeat)
    for (auto& [id, node] : nodes_) node.last_seen = std::min(now_, node.last_seen + gap);
  last_tick_ = now_;

  for (auto it = nodes_.begin(); it != nodes_.end();) {
    const auto node = it++;
    const double silent = now_ - node->second.last_seen;
    if (silent > options_.dead_after)
      remove_node(node, fmt::format("stopped answering (silent for {:.1f} s)", silent));
  }
  for (auto& [id, run] : runs_) {
    if (run.state == RunState::Stopping && now_ - run.stop_asked > options_.stop_grace) {
      abort_members(id, run, "the run did not stop in time");
      set_state(
          id, run, RunState::Stopped,
          fmt::format("aborted at step {}: it did not stop within {:.0f} s; nothing was saved after its last "
                      "checkpoint",
                      run.step, options_.stop_grace));
    }
  }
  start_waiting_runs();
  for (const auto& [id, run] : runs_) tell_watchers(id, run);
}

// ---- the life of a run

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
  // The fastest ones; in the order of their names, which makes ranks easy to follow.
  const auto info = [this](uint64_t node) -> const msg::RegisterT& { return nodes_.at(node).info; };
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](uint64_t a, uint64_t b) { return info(a).gflops > info(b).gflops; });
  chosen.resize(wanted);
  // Nodes of like speed hold the same modelets in their replicas, which take turns in choosing.
  std::vector<uint64_t> ranks;
  for (size_t replica = 0; replica < replicas; ++replica)
    for (size_t i = replica; i < wanted; i += replicas) ranks.push_back(chosen[i]);
  chosen = std::move(ranks);
  if (replicas == 1)
    std::sort(chosen.begin(), chosen.end(),
              [&](uint64_t a, uint64_t b) { return info(a).name < info(b).name; });

  std::vector<NodeCapacity> capacities;
  std::vector<Member> members;
  for (const uint64_t node : chosen) {
    capacities.push_back(capacity(node, 1));
    members.push_back({.node = node, .name = info(node).name});
  }
  try {
    bind_group(id, run, std::move(members), make_plan(run.experiment, run.shape, capacities));
  } catch (const Error& error) {
    fail(id, run, error.what());
  }
  return true;
}

NodeCapacity Core::capacity(uint64_t node, double speed) const {
  const msg::RegisterT& info = nodes_.at(node).info;
  return {info.name, info.cores, info.memory_bytes, info.gflops * speed, info.memory_gbps * speed};
}

// `chosen` has a node for each of the plan, in its order.
void Core::bind_group(uint64_t id, Run& run, std::vector<Member> chosen, const Plan& plan) {
  // A node that got no modelet would only wait for the others: it stays free, or becomes so.
  std::vector<uint32_t> rank_of(chosen.size());
  run.members.clear();
  run.owner.clear();
  run.balance = {};
  run.prepare_began = now_;
  for (size_t i = 0; i < chosen.size(); ++i) {
    rank_of[i] = static_cast<uint32_t>(run.members.size());
    Member& member = chosen[i];
    release(nodes_.at(member.node));
    if (plan.nodes[i].modelets.empty()) continue;
    member.planned_seconds = plan.nodes[i].seconds_per_step;
    for (const uint32_t modelet : plan.nodes[i].modelets)
      member.planned_bytes += modelet_bytes(plan.cut[modelet], run.experiment);
    run.members.push_back(std::move(member));
  }
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

// Members that hold the modelets of `measured` seconds a step: what they were planned to take tells how fast
// they are, so the plan of now, predicted with these speeds, takes what was measured.
void Core::replan(uint64_t id, Run& run, const std::vector<double>& measured, double seconds_left) {
  if (std::ranges::any_of(run.members, [](const Member& member) { return member.done; })) return;
  Replan next;
  std::vector<NodeCapacity> capacities;
  for (size_t i = 0; i < run.members.size(); ++i) {
    const Member& member = run.members[i];
    if (measured[i] <= 0 || member.planned_seconds <= 0) return;
    next.speed.push_back(
        std::clamp(member.speed * member.planned_seconds / measured[i], 1 / kMostSpeed, kMostSpeed));
    capacities.push_back(capacity(member.node, next.speed.back()));
  }
  try {
    next.plan = make_plan(run.experiment, run.shape, capacities);
  } catch (const Error& error) {
    return log(fmt::format("run {}: no new plan: {}", id, error.what()));
  }
  const size_t slowest =
      static_cast<size_t>(std::max_element(measured.begin(), measured.end()) - measured.begin());
  double planned = 0;
  for (const NodePlan& node : next.plan.nodes) planned = std::max(planned, node.seconds_per_step);
  const double gain = 1 - planned / measured[slowest];
  // Stopping writes what starting reads: about as long.
  if (!(gain >= kLeastGain && gain * seconds_left > 2 * run.prepare_seconds)) return;

  size_t moved = 0;
  for (size_t modelet = 0; modelet < run.owner.size(); ++modelet)
    moved += run.owner[modelet] != next.plan.owner[modelet];
  if (moved == 0) return;
  double others = 0;  // how much faster than planned they are, in the mean
  for (size_t i = 0; i < run.members.size(); ++i)
    if (i != slowest) others += next.speed[i] / run.members[i].speed;
  others /= static_cast<double>(run.members.size() - 1);
  const double slower = others * run.members[slowest].speed / next.speed[slowest];
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

// All members have stopped at the same step, with a checkpoint.
void Core::restart(uint64_t id, Run& run) {
  Replan next = std::move(*std::exchange(run.replan, std::nullopt));
  std::vector<Member> members;
  for (size_t i = 0; i < run.members.size(); ++i)
    members.push_back({.node = run.members[i].node, .name = run.members[i].name, .speed = next.speed[i]});
  run.submit.resume = next.checkpoint;
  ++run.replans;
  next.event["step"] = run.step;
  next.event["checkpoint"] = next.checkpoint;
  publish(id, run, next.event.dump());
  bind_group(id, run, std::move(members), next.plan);
}

void Core::fail(uint64_t id, Run& run, const std::string& why) {
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

// ---- out

std::vector<msg::RunStatusT> Core::runs() const {
  std::vector<msg::RunStatusT> list;
  for (const auto& [id, run] : runs_) list.push_back(status(id, run));
  return list;
}

std::vector<msg::NodeStatusT> Core::nodes() const {
  std::vector<msg::NodeStatusT> list;
  for (const auto& [id, node] : nodes_) {
    msg::NodeStatusT entry;
    entry.name = node.info.name;
    entry.version = node.info.version;
    entry.cores = node.info.cores;
    entry.memory_bytes = node.info.memory_bytes;
    entry.gflops = node.info.gflops;
    entry.memory_gbps = node.info.memory_gbps;
    entry.run = node.run;
    entry.step = node.step;
    entry.silent_seconds = now_ - node.last_seen;
    const double step_seconds = node.times.compute + node.times.codec + node.times.wait;
    entry.compute_seconds = node.times.compute;
    entry.wait_share = step_seconds > 0 ? node.times.wait / step_seconds : 0;
    list.push_back(std::move(entry));
  }
  return list;
}

msg::RunStatusT Core::status(uint64_t id, const Run& run) const {
  msg::RunStatusT status;
  status.run = id;
  status.name = run.submit.name;
  status.state = run.state;
  status.detail = run.detail;
  status.step = run.step;
  for (const Member& member : run.members) status.node_names.push_back(member.name);
  status.seconds = (has_ended(run.state) ? run.ended : now_) - run.submitted;
  status.replans = run.replans;
  if (const auto straggler = find_straggler(run.balance.latest());
      straggler && straggler->excess >= kNotableExcess) {
    status.straggler = run.members[straggler->node].name;
    status.straggler_excess = straggler->excess;
  }
  return status;
}

void Core::tell_watchers(uint64_t id, const Run& run) {
  for (const std::string& watcher : run.watchers) send(watcher, status(id, run));
}

void Core::send(const std::string& peer, msg::FromSchedulerMessage message) {
  actions_.push_back(Send{peer, std::move(message)});
}

void Core::log(std::string text) { actions_.push_back(Log{std::move(text)}); }

}  // namespace modelet::scheduler
