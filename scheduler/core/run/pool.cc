#include "scheduler/core/run/pool.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/text/printable.h"
#include "scheduler/plan/bytes_text.h"

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

std::map<uint64_t, Node>::iterator Pool::add(Node node) {
  const auto added = nodes.emplace(next_node++, std::move(node)).first;
  node_ids[added->second.info.name] = added->first;
  return added;
}

void Pool::remove(uint64_t node) {
  const auto found = nodes.find(node);
  node_ids.erase(found->second.info.name);
  nodes.erase(found);
}

std::map<uint64_t, Node>::iterator Pool::node_named(const std::string& name) {
  const auto found = node_ids.find(name);
  return found == node_ids.end() ? nodes.end() : nodes.find(found->second);
}

bool Pool::is_there(const std::string& holder) const {
  return holder.empty() ? options.data_port != 0 : node_ids.contains(holder);
}

bool Pool::keeps(const std::string& holder, double since) const {
  if (holder.empty()) return is_there(holder);
  const auto found = node_ids.find(holder);
  if (found == node_ids.end()) return false;
  const Node& node = nodes.at(found->second);
  return !node.leaving && node.joined <= since;
}

std::vector<std::unique_ptr<comm::control::HolderT>> Pool::holders(
    const std::set<std::string>& wanted) const {
  using comm::control::HolderT;
  std::vector<std::unique_ptr<HolderT>> holders;
  for (const auto& [id, node] : nodes)
    if (const auto& info = node.info; wanted.contains(info.name) && !info.holder_endpoint.empty())
      holders.push_back(std::make_unique<HolderT>(
          HolderT{{}, info.name, info.holder_endpoint, info.holder_key, info.fetch_key}));
  if (wanted.contains("")) holders.push_back(std::make_unique<HolderT>());
  return holders;
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

FreeNodes::FreeNodes(const Pool& pool, uint64_t taker)
    : free_(pool.free_nodes().size()), present_(pool.willing_nodes()) {
  std::map<uint64_t, size_t> groups;  // nodes of each other run
  for (const auto& [id, node] : pool.nodes)
    if (const uint64_t run = node.run != 0 ? node.run : node.planned_for;
        run != 0 && run != taker && node.is_willing())
      ++groups[run];
  std::vector<bool> sums(present_ + 1, false);  // [n]: some set of these groups has n nodes
  sums[0] = true;
  for (const auto& [run, size] : groups)
    for (size_t sum = sums.size(); sum-- > size;)
      if (sums[sum - size]) sums[sum] = true;
  next_sum_.resize(sums.size());
  for (size_t n = sums.size(), next = n; n-- > 0;) next_sum_[n] = next = sums[n] ? n : next;
}

// Groups may end in any order. Once those that have ended, without the taker's, have given back as many nodes as
// the waiting run lacks now, it begins, unless the taker took more than they gave back beyond that.
size_t FreeNodes::left_by(size_t wanted) const {
  if (wanted > present_) return free_;  // it waits for nodes that may join, and nobody waits for it meanwhile
  if (wanted <= free_) return free_ - wanted;
  return std::min(free_, next_sum_[wanted - free_] - (wanted - free_));
}

size_t Pool::nodes_to_spare(uint64_t taker) const {
  const FreeNodes nodes_now(*this, taker);
  size_t spare = nodes_now.free();
  if (spare == 0) return 0;
  for (const auto& [id, run] : runs)
    if (id != taker && run.is_waiting() && !run.planning().is_open())
      spare = std::min(spare, nodes_now.left_by(run.wanted_nodes(options.max_nodes, nodes_now.present())));
  return spare;
}

void Pool::shorten_old_logs(const std::string& key) {
  size_t whole = 0;
  for (auto each = runs.rbegin(); each != runs.rend(); ++each) {
    Run& run = each->second;
    if (run.parent() != 0 || run.submitter() != key || !has_ended(run.state()) || run.journal().is_short())
      continue;
    if (++whole > options.max_whole_logs) run.shorten_log(*this);
  }
}

bool Pool::is_key_full(const std::string& key, const Holding& more, std::string* why) const {
  struct Limit {
    uint64_t Holding::*what;
    const char* name;
  };
  if (key.empty()) return false;
  const Holding held = accounts.of(key);
  for (const auto& [what, name] : {Limit{&Holding::runs, "runs that wait or work"},
                                   Limit{&Holding::bytes, "bytes of submissions and events"},
                                   Limit{&Holding::addresses, "files in the store that runs begin from"},
                                   Limit{&Holding::watches, "watches"}}) {
    const uint64_t wanted = held.*what + more.*what, most = options.max_of_key.*what;
    if (more.*what == 0 || wanted <= most) continue;
    if (why != nullptr)
      *why = fmt::format(
          "the key '{}' would have {} {}, and one key may have {}: wait until some have ended, or "
          "stop some",
          printable(key), wanted, name, most);
    return true;
  }
  return false;
}

bool Pool::has_room(const std::string& key, const Holding& more, std::string& why) const {
  if (is_key_full(key, more, &why)) return false;
  if (more.bytes == 0 || accounts.all().bytes + more.bytes <= options.max_bytes) return true;
  why = fmt::format(
      "the runs of all keys together may take {}, and there is no room for another one: wait until "
      "some have ended",
      bytes_text(options.max_bytes));
  return false;
}

double Pool::seconds_between_losses(size_t count) const {
  return losses == 0 || count == 0 ? 0
                                   : node_seconds / static_cast<double>(losses) / static_cast<double>(count);
}

uint64_t Pool::calendar_seconds() const {
  if (!options.calendar) return 1;
  const auto since_1970 = std::chrono::duration_cast<std::chrono::seconds>(options.calendar().time_since_epoch());
  return static_cast<uint64_t>(std::max<int64_t>(since_1970.count(), 1));
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
