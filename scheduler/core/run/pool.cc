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

// Groups may end in any order. Once those that have ended, without the taker's, have given back as many nodes as
// `waiting` lacks now, it begins, unless the taker took more than they gave back beyond that.
size_t Pool::left_by(const Run& waiting, uint64_t taker) const {
  const size_t wanted = waiting.wanted_nodes(*this), free = free_nodes().size(), present = willing_nodes();
  if (wanted > present) return free;  // it waits for nodes that may join, and nobody waits for it meanwhile
  if (wanted <= free) return free - wanted;
  std::map<uint64_t, size_t> groups;  // nodes of each other run
  for (const auto& [id, node] : nodes)
    if (const uint64_t run = node.run != 0 ? node.run : node.planned_for;
        run != 0 && run != taker && node.is_willing())
      ++groups[run];
  std::vector<bool> sums(present + 1, false);  // [n]: some set of these groups has n nodes
  sums[0] = true;
  for (const auto& [run, size] : groups)
    for (size_t sum = sums.size(); sum-- > size;)
      if (sums[sum - size]) sums[sum] = true;
  const auto lacking = sums.begin() + static_cast<std::ptrdiff_t>(wanted - free);
  return std::min(free, static_cast<size_t>(std::find(lacking, sums.end(), true) - lacking));
}

size_t Pool::nodes_to_spare(uint64_t taker) const {
  size_t spare = free_nodes().size();
  for (const auto& [id, run] : runs)
    if (id != taker && run.is_waiting() && !run.planning) spare = std::min(spare, left_by(run, taker));
  return spare;
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
