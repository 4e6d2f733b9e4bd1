#include "scheduler/core/run/pool.h"

#include <algorithm>
#include <utility>

namespace modelet::scheduler {

void Node::bind(uint64_t to, uint32_t of_epoch, double now) {
  release();
  run = to;
  epoch = of_epoch;
  bound_since = now;
}

void Node::release() {
  run = planned_for = stray = 0;
  epoch = 0;
  step = 0;
  missed = 0;
  times = {};
  confirmed = false;
}

bool Node::may_log(size_t bytes, double now) {
  constexpr double kBurst = 256 << 10, kPerSecond = 16 << 10;
  log_room = log_room_at == 0 ? kBurst : std::min(kBurst, log_room + kPerSecond * (now - log_room_at));
  log_room_at = now;
  if (log_room < static_cast<double>(bytes)) return false;
  log_room -= static_cast<double>(bytes);
  return true;
}

Node* Pool::node(uint64_t id) {
  const auto found = nodes.find(id);
  return found == nodes.end() ? nullptr : &found->second;
}

Node* Pool::node_named(const std::string& name) {
  const auto found =
      std::ranges::find_if(nodes, [&](const auto& entry) { return entry.second.info.name == name; });
  return found == nodes.end() ? nullptr : &found->second;
}

bool Pool::is_there(const std::string& holder) const {
  if (holder.empty()) return options.data_port != 0;
  return std::ranges::any_of(nodes, [&](const auto& entry) { return entry.second.info.name == holder; });
}

bool Pool::has_waiting_run() const {
  return std::ranges::any_of(runs, [](const auto& entry) { return entry.second.is_waiting(); });
}

std::vector<uint64_t> Pool::free_nodes() const {
  std::vector<uint64_t> free;
  for (const auto& [id, node] : nodes)
    if (node.is_free()) free.push_back(id);
  return free;
}

size_t Pool::willing_nodes() const {
  return static_cast<size_t>(
      std::ranges::count_if(nodes, [](const auto& entry) { return entry.second.is_willing(); }));
}

double Pool::seconds_between_losses(size_t count) const {
  return losses == 0 || count == 0 ? 0
                                   : node_seconds / static_cast<double>(losses) / static_cast<double>(count);
}

PoolRecord Pool::record() const {
  return {.id = pool_id,
          .next_run = next_run,
          .node_seconds = static_cast<uint64_t>(node_seconds),
          .losses = losses};
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
