#include "scheduler/plan/search.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "scheduler/plan/bytes_text.h"

namespace modelet::scheduler {
namespace {

constexpr int kMostImprovements = 1000;

class Search {
 public:
  explicit Search(const PlacementProblem& problem)
      : partition_(problem.partition),
        nodes_(problem.nodes),
        fixed_bytes_(problem.fixed_bytes),
        owner_(partition_.size(), 0) {
    for (const StepWork& work : problem.batch_work) {
      load_.emplace_back();
      for (const NodeCapacity& node : nodes_) load_.back().push_back(sum(work.seconds(node)));
    }
    memory_.assign(nodes_.size(), fixed_bytes_);
    sort_into_sizes(problem.costs);
  }

  Placement find() {
    if (!greedy(by_time()) && !greedy(by_memory())) refuse();
    for (int i = 0; i < kMostImprovements && improve(); ++i) {
    }
    join_neighbours();
    return {std::move(owner_), tried_};
  }

 private:
  // Modelets that cost the same.
  struct Size {
    uint32_t layer = 0;
    uint64_t memory_bytes = 0;
    std::vector<double> seconds;           // [node]
    std::vector<std::set<uint32_t>> held;  // [node] -> modelets
    uint64_t count = 0;
  };

  void sort_into_sizes(std::span<const ModeletCost> costs) {
    std::map<std::tuple<uint32_t, LayerKind, uint64_t, uint64_t>, uint32_t> known;
    for (const ModeletSpec& modelet : partition_) {
      const auto [found, is_new] =
          known.try_emplace({modelet.layer, modelet.kind, modelet.inputs, modelet.neurons()},
                            static_cast<uint32_t>(sizes_.size()));
      size_of_.push_back(found->second);
      if (is_new) {
        Size size{.layer = modelet.layer, .memory_bytes = costs[modelet.id].memory_bytes};
        for (const NodeCapacity& node : nodes_)
          size.seconds.push_back(sum(costs[modelet.id].work.seconds(node)));
        size.held.resize(nodes_.size());
        sizes_.push_back(std::move(size));
      }
      ++sizes_[found->second].count;
    }
  }

  const Size& size(uint32_t modelet) const { return sizes_[size_of_[modelet]]; }

  std::vector<uint32_t> by_time() const {
    return sorted([](const Size& size) { return size.seconds.front(); });
  }
  std::vector<uint32_t> by_memory() const {
    return sorted([](const Size& size) { return static_cast<double>(size.memory_bytes); });
  }
  template <class Key>
  std::vector<uint32_t> sorted(const Key& key) const {
    std::vector<uint32_t> order(partition_.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return key(size(a)) > key(size(b)); });
    return order;
  }

  bool fits(const Size& size, size_t node) const {
    return memory_[node] + size.memory_bytes <= nodes_[node].memory_bytes;
  }

  void put(uint32_t modelet, uint32_t node) {
    Size& size = sizes_[size_of_[modelet]];
    owner_[modelet] = node;
    load_[size.layer][node] += size.seconds[node];
    memory_[node] += size.memory_bytes;
    size.held[node].insert(modelet);
  }
  void take(uint32_t modelet) {
    Size& size = sizes_[size_of_[modelet]];
    const uint32_t node = owner_[modelet];
    load_[size.layer][node] -= size.seconds[node];
    memory_[node] -= size.memory_bytes;
    size.held[node].erase(modelet);
  }

  bool greedy(const std::vector<uint32_t>& order) {
    const auto memory_before = memory_;
    const auto load_before = load_;
    for (const uint32_t modelet : order) {
      const auto node = earliest_node(size(modelet));
      if (!node) {
        memory_ = memory_before;
        load_ = load_before;
        for (Size& size : sizes_) size.held.assign(nodes_.size(), {});
        return false;
      }
      put(modelet, *node);
    }
    return true;
  }

  // The node that would finish its part of the layer first with this modelet; among equals, the one with less
  // other work.
  std::optional<uint32_t> earliest_node(const Size& size) const {
    std::optional<uint32_t> best;
    double best_finish = 0, best_total = 0;
    for (uint32_t node = 0; node < nodes_.size(); ++node) {
      if (!fits(size, node)) continue;
      const double time = size.seconds[node], finish = load_[size.layer][node] + time;
      if (best && finish > best_finish) continue;
      const double total = total_load(node) + time;
      if (!best || finish < best_finish || total < best_total) {
        best = node;
        best_finish = finish;
        best_total = total;
      }
    }
    return best;
  }

  double total_load(size_t node) const {
    double total = 0;
    for (const auto& layer : load_) total += layer[node];
    return total;
  }

  // Makes one move or swap that makes the slowest node of some layer faster, and makes no other node as slow
  // as this node was.
  bool improve() {
    for (uint32_t layer = 0; layer < load_.size(); ++layer) {
      const auto slowest = static_cast<uint32_t>(std::max_element(load_[layer].begin(), load_[layer].end()) -
                                                 load_[layer].begin());
      std::set<uint32_t> held;  // one modelet of each size: the others would give the same result
      for (const Size& size : sizes_)
        if (size.layer == layer && !size.held[slowest].empty()) held.insert(*size.held[slowest].begin());
      for (const uint32_t modelet : held)
        if (move_away(modelet) || swap_away(modelet)) return true;
    }
    return false;
  }

  bool move_away(uint32_t modelet) {
    const Size& moved = size(modelet);
    const auto& load = load_[moved.layer];
    const double worst = load[owner_[modelet]];
    for (uint32_t node = 0; node < nodes_.size(); ++node) {
      ++tried_;
      if (node == owner_[modelet] || !fits(moved, node) ||
          !clearly_less(load[node] + moved.seconds[node], worst))
        continue;
      take(modelet);
      put(modelet, node);
      return true;
    }
    return false;
  }

  // Swaps `modelet` with the first modelet of its layer for which that helps.
  bool swap_away(uint32_t modelet) {
    const Size& mine = size(modelet);
    const uint32_t here = owner_[modelet];
    uint32_t best = std::numeric_limits<uint32_t>::max();
    for (const Size& other : sizes_) {
      if (other.layer != mine.layer) continue;
      for (uint32_t there = 0; there < nodes_.size(); ++there) {
        ++tried_;
        if (there == here || other.held[there].empty() || *other.held[there].begin() > best) continue;
        if (swap_helps(mine, here, other, there)) best = *other.held[there].begin();
      }
    }
    if (best == std::numeric_limits<uint32_t>::max()) return false;
    const uint32_t there = owner_[best];
    take(modelet);
    take(best);
    put(modelet, there);
    put(best, here);
    return true;
  }

  bool swap_helps(const Size& mine, uint32_t here, const Size& other, uint32_t there) const {
    const auto& load = load_[mine.layer];
    const double worst = load[here];
    const double after_here = worst - mine.seconds[here] + other.seconds[here];
    const double after_there = load[there] - other.seconds[there] + mine.seconds[there];
    return clearly_less(std::max(after_here, after_there), worst) &&
           memory_[here] - mine.memory_bytes + other.memory_bytes <= nodes_[here].memory_bytes &&
           memory_[there] - other.memory_bytes + mine.memory_bytes <= nodes_[there].memory_bytes;
  }

  // It makes no difference to the plan which node holds which modelets of the same size, and hardly any if
  // they differ by one neuron, as those of an output layer do. So neighbours go to the same node. That node
  // computes adjacent columns of the input layer together (shard/layers/network.cc), and the labels of its
  // output modelets lie side by side in the data.
  void join_neighbours() {
    for (const uint64_t difference : {1u, 0u}) {
      const std::vector<uint32_t> before = owner_;
      for (auto first = partition_.begin(); first != partition_.end();) {
        const auto last = std::find_if(first, partition_.end(), [&](const ModeletSpec& other) {
          const auto [fewer, more] = std::minmax({other.neurons(), first->neurons()});
          return other.layer != first->layer || more - fewer > difference;
        });
        std::sort(owner_.begin() + (first - partition_.begin()),
                  owner_.begin() + (last - partition_.begin()));
        first = last;
      }
      if (all_fit()) return;
      owner_ = before;
    }
  }

  bool all_fit() const {
    std::vector<uint64_t> memory(nodes_.size(), fixed_bytes_);
    for (const ModeletSpec& modelet : partition_) memory[owner_[modelet.id]] += size(modelet.id).memory_bytes;
    for (size_t node = 0; node < nodes_.size(); ++node)
      if (memory[node] > nodes_[node].memory_bytes) return false;
    return true;
  }

  // The tolerance keeps rounding errors from making improvements go round in circles.
  static bool clearly_less(double a, double b) { return a < b * (1 - 1e-9); }

  [[noreturn]] void refuse() const {
    uint64_t needed = 0, offered = 0, largest = 0;
    uint64_t short_of_fixed = memory_.front();  // of the node that lacks least for what every node must hold
    for (const Size& size : sizes_) {
      needed += size.memory_bytes * size.count;
      largest = std::max(largest, size.memory_bytes);
    }
    for (size_t node = 0; node < nodes_.size(); ++node) {
      const uint64_t fixed = memory_[node], usable = std::min(fixed, nodes_[node].memory_bytes);
      offered += nodes_[node].memory_bytes - usable;
      short_of_fixed = std::min(short_of_fixed, fixed - usable);
    }
    const std::string what = fmt::format(
        "the model does not fit: its modelets need {}, the {} node(s) offer {} of memory beside {} each "
        "for a step's buffers and the program",
        bytes_text(needed), nodes_.size(), bytes_text(offered), bytes_text(memory_.front()));
    if (needed + short_of_fixed > offered)
      throw Error(what + fmt::format("; {} are missing: add nodes, or make the model smaller",
                                     bytes_text(needed + short_of_fixed - offered)));
    throw Error(
        what +
        fmt::format("; together they have enough, but the largest modelet needs {}: use smaller modelets "
                    "(modelets.output_modelets, modelets.hidden_columns)",
                    bytes_text(largest)));
  }

  const std::span<const ModeletSpec> partition_;
  const std::span<const NodeCapacity> nodes_;
  const uint64_t fixed_bytes_;
  std::vector<Size> sizes_;
  std::vector<uint32_t> size_of_;  // [partition] -> index in sizes_
  std::vector<uint32_t> owner_;
  std::vector<std::vector<double>> load_;  // [layer][node] seconds
  std::vector<uint64_t> memory_;           // [node]
  uint64_t tried_ = 0;
};

}  // namespace

Placement find_placement(const PlacementProblem& problem) { return Search(problem).find(); }

}  // namespace modelet::scheduler
