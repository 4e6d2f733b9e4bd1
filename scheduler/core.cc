#include "scheduler/core.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "scheduler/permission.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;
using msg::RunState;

}  // namespace

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
    entry.bf16_gflops = node.info.bf16_gflops;
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
  status.user_error = run.user_error;
  if (const auto straggler = find_straggler(run.balance.latest());
      straggler && straggler->excess >= kNotableExcess && !has_ended(run.state)) {
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
