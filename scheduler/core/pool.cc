#include "scheduler/core/pool.h"

#include <algorithm>
#include <utility>

namespace modelet::scheduler {

void Node::bind(uint64_t to, double now) {
  release();
  run = to;
  bound_since = now;
}

void Node::release() {
  run = planned_for = 0;
  step = 0;
  times = {};
  confirmed = false;
}

Node* Pool::node(uint64_t id) {
  const auto found = nodes.find(id);
  return found == nodes.end() ? nullptr : &found->second;
}

bool Pool::has_waiting_run() const {
  return std::ranges::any_of(
      runs, [](const auto& entry) { return entry.second.state == comm::control::RunState::Queued; });
}

NodeCapacity Pool::capacity(uint64_t node, double speed) const {
  const comm::control::RegisterT& info = nodes.at(node).info;
  return {.name = info.name,
          .cores = info.cores,
          .memory_bytes = info.memory_bytes,
          .gflops = info.gflops * speed,
          .memory_gbps = info.memory_gbps * speed,
          .bf16_gflops = info.bf16_gflops * speed};
}

void Pool::send(const std::string& peer, comm::control::FromSchedulerMessage message) {
  actions.push_back(Send{peer, std::move(message)});
}

void Pool::log(std::string text) { actions.push_back(Log{std::move(text)}); }

}  // namespace modelet::scheduler
