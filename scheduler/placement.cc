#include "scheduler/placement.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/error.h"

namespace modelet::scheduler {
namespace {

constexpr uint64_t kProgramBytes = uint64_t{64} << 20;  // program, sockets, the data's resident pages
constexpr int kMostImprovements = 1000;

// What half a second of measuring finds of one machine differs by so much from time to time (decision 0021).
constexpr double kSpeedNoise = 0.15;

// Of the nodes that hold the same modelets.
std::vector<NodeCapacity> weakest_of_replicas(std::span<const NodeCapacity> nodes, uint32_t replicas) {
  const size_t ranks = nodes.size() / replicas;
  std::vector<NodeCapacity> weakest(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(ranks));
  for (size_t i = ranks; i < nodes.size(); ++i) {
    NodeCapacity& place = weakest[i % ranks];
    place.memory_bytes = std::min(place.memory_bytes, nodes[i].memory_bytes);
    place.gflops = std::min(place.gflops, nodes[i].gflops);
    place.memory_gbps = std::min(place.memory_gbps, nodes[i].memory_gbps);
    place.bf16_gflops = std::min(place.bf16_rate(), nodes[i].bf16_rate());
  }
  return weakest;
}

double sum(const PartSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }
void add(PartSeconds& to, const PartSeconds& seconds) {
  for (size_t part = 0; part < kStepParts; ++part) to[part] += seconds[part];
}

// seconds[i]: of the whole model on node i alone. Nodes that a measurement cannot tell apart get the mean of
// their rates, so that equal machines get equal parts: a plan that follows the noise makes one wait for the
// other in each step.
void even_out(std::vector<NodeCapacity>& nodes, const std::vector<double>& seconds) {
  std::vector<size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return seconds[a] < seconds[b]; });
  for (auto first = order.begin(); first != order.end();) {
    const auto last = std::find_if(
        first, order.end(), [&](size_t node) { return seconds[node] > (1 + kSpeedNoise) * seconds[*first]; });
    const auto set_to_mean = [&](double NodeCapacity::*rate) {
      double mean = 0;
      for (auto node = first; node != last; ++node)
        mean += nodes[*node].*rate / static_cast<double>(last - first);
      for (auto node = first; node != last; ++node) nodes[*node].*rate = mean;
    };
    for (auto node = first; node != last; ++node) nodes[*node].bf16_gflops = nodes[*node].bf16_rate();
    for (const auto rate : {&NodeCapacity::gflops, &NodeCapacity::bf16_gflops, &NodeCapacity::memory_gbps})
      set_to_mean(rate);
    first = last;
  }
}

// Assigns modelets to nodes: longest processing time first (Graham 1969), then moves and swaps while they
// help.
class Placer {
 public:
  // batch_work: [layer], of every node.
  Placer(const std::vector<ModeletSpec>& cut, std::span<const ModeletCost> costs,
         std::span<const StepWork> batch_work, std::span<const NodeCapacity> nodes, uint64_t fixed_bytes)
      : cut_(cut), costs_(costs), nodes_(nodes), fixed_bytes_(fixed_bytes), owner_(cut.size(), 0) {
    for (const StepWork& work : batch_work) {
      load_.emplace_back();
      for (const NodeCapacity& node : nodes) load_.back().push_back(sum(work.seconds(node)));
    }
    memory_.assign(nodes.size(), fixed_bytes);
  }

  std::vector<uint32_t> place() {
    if (!greedy(by_time()) && !greedy(by_memory())) refuse();
    for (int i = 0; i < kMostImprovements && improve(); ++i) {
    }
    join_neighbours();
    return owner_;
  }

 private:
  double seconds(uint32_t modelet, size_t node) const {
    return sum(costs_[modelet].work.seconds(nodes_[node]));
  }
  std::vector<uint32_t> by_time() const {
    return sorted([this](uint32_t modelet) { return seconds(modelet, 0); });
  }
  std::vector<uint32_t> by_memory() const {
    return sorted([this](uint32_t modelet) { return static_cast<double>(costs_[modelet].memory_bytes); });
  }

  template <class Key>
  std::vector<uint32_t> sorted(const Key& key) const {
    std::vector<uint32_t> order(cut_.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key(a) > key(b); });
    return order;
  }

  bool fits(uint32_t modelet, size_t node) const {
    return memory_[node] + costs_[modelet].memory_bytes <= nodes_[node].memory_bytes;
  }

  void put(uint32_t modelet, uint32_t node) {
    owner_[modelet] = node;
    load_[cut_[modelet].layer][node] += seconds(modelet, node);
    memory_[node] += costs_[modelet].memory_bytes;
  }
  void take(uint32_t modelet) {
    const uint32_t node = owner_[modelet];
    load_[cut_[modelet].layer][node] -= seconds(modelet, node);
    memory_[node] -= costs_[modelet].memory_bytes;
  }

  bool greedy(const std::vector<uint32_t>& order) {
    const auto memory_before = memory_;
    const auto load_before = load_;
    for (const uint32_t modelet : order) {
      const auto node = earliest_node(modelet);
      if (!node) {
        memory_ = memory_before;
        load_ = load_before;
        return false;
      }
      put(modelet, *node);
    }
    return true;
  }

  // The node that would finish the modelet's layer first; among equal ones the one with less other work.
  std::optional<uint32_t> earliest_node(uint32_t modelet) const {
    std::optional<uint32_t> best;
    double best_finish = 0, best_total = 0;
    for (uint32_t node = 0; node < nodes_.size(); ++node) {
      if (!fits(modelet, node)) continue;
      const double time = seconds(modelet, node), finish = load_[cut_[modelet].layer][node] + time;
      const double total = total_load(node) + time;
      if (!best || finish < best_finish || (finish == best_finish && total < best_total)) {
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

  // One move or swap that makes the slowest node of some layer faster, and nobody as slow as it was.
  bool improve() {
    for (uint32_t layer = 0; layer < load_.size(); ++layer) {
      const auto slowest = static_cast<uint32_t>(std::max_element(load_[layer].begin(), load_[layer].end()) -
                                                 load_[layer].begin());
      for (const ModeletSpec& modelet : cut_)
        if (modelet.layer == layer && owner_[modelet.id] == slowest &&
            (move_away(modelet.id) || swap_away(modelet.id)))
          return true;
    }
    return false;
  }

  bool move_away(uint32_t modelet) {
    const auto& load = load_[cut_[modelet].layer];
    const double worst = load[owner_[modelet]];
    for (uint32_t node = 0; node < nodes_.size(); ++node) {
      if (node == owner_[modelet] || !fits(modelet, node) ||
          !clearly_less(load[node] + seconds(modelet, node), worst))
        continue;
      take(modelet);
      put(modelet, node);
      return true;
    }
    return false;
  }

  bool swap_away(uint32_t modelet) {
    const uint32_t layer = cut_[modelet].layer, here = owner_[modelet];
    const double worst = load_[layer][here];
    for (const ModeletSpec& other : cut_) {
      const uint32_t there = owner_[other.id];
      if (other.layer != layer || there == here) continue;
      const double mine = worst - seconds(modelet, here) + seconds(other.id, here);
      const double theirs = load_[layer][there] - seconds(other.id, there) + seconds(modelet, there);
      if (!clearly_less(std::max(mine, theirs), worst) || !swap_fits(modelet, other.id)) continue;
      take(modelet);
      take(other.id);
      put(modelet, there);
      put(other.id, here);
      return true;
    }
    return false;
  }

  // Who holds which of a layer's modelets of equal size makes no difference to the plan, and hardly one if
  // they differ by a neuron, as those of an output layer do. Neighbours go to the same node, which computes
  // adjacent columns of the input layer together (shard/network.cc), and whose labels lie side by side in the
  // data.
  void join_neighbours() {
    for (const uint64_t difference : {1u, 0u}) {
      const std::vector<uint32_t> before = owner_;
      for (auto first = cut_.begin(); first != cut_.end();) {
        const auto last = std::find_if(first, cut_.end(), [&](const ModeletSpec& other) {
          const auto [fewer, more] = std::minmax({other.neurons(), first->neurons()});
          return other.layer != first->layer || more - fewer > difference;
        });
        std::sort(owner_.begin() + (first - cut_.begin()), owner_.begin() + (last - cut_.begin()));
        first = last;
      }
      if (all_fit()) return;
      owner_ = before;
    }
  }

  bool all_fit() const {
    std::vector<uint64_t> memory(nodes_.size(), fixed_bytes_);
    for (const ModeletSpec& modelet : cut_) memory[owner_[modelet.id]] += costs_[modelet.id].memory_bytes;
    for (size_t node = 0; node < nodes_.size(); ++node)
      if (memory[node] > nodes_[node].memory_bytes) return false;
    return true;
  }

  bool swap_fits(uint32_t a, uint32_t b) const {
    const uint64_t bytes_a = costs_[a].memory_bytes, bytes_b = costs_[b].memory_bytes;
    return memory_[owner_[a]] - bytes_a + bytes_b <= nodes_[owner_[a]].memory_bytes &&
           memory_[owner_[b]] - bytes_b + bytes_a <= nodes_[owner_[b]].memory_bytes;
  }

  // Rounding must not make improvements go round in circles.
  static bool clearly_less(double a, double b) { return a < b * (1 - 1e-9); }

  [[noreturn]] void refuse() const {
    uint64_t needed = 0, offered = 0, largest = 0;
    uint64_t short_of_fixed = memory_.front();  // of the node that comes closest to holding what each must
    for (const ModeletCost& cost : costs_) {
      needed += cost.memory_bytes;
      largest = std::max(largest, cost.memory_bytes);
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
    throw Error(what + fmt::format("; in sum enough, but the largest modelet needs {}: cut finer "
                                   "(modelets.output_modelets, modelets.hidden_columns)",
                                   bytes_text(largest)));
  }

  const std::vector<ModeletSpec>& cut_;
  const std::span<const ModeletCost> costs_;
  const std::span<const NodeCapacity> nodes_;
  const uint64_t fixed_bytes_;  // of each node, whatever it holds
  std::vector<uint32_t> owner_;
  std::vector<std::vector<double>> load_;  // [layer][node] seconds
  std::vector<uint64_t> memory_;           // [node]
};

}  // namespace

Plan make_plan(const Experiment& experiment, const DataShape& shape, std::span<const NodeCapacity> nodes) {
  MODELET_CHECK(!nodes.empty());
  const uint32_t replicas = experiment.cluster.replicas;
  if (nodes.size() % replicas != 0)
    throw UsageError(fmt::format("cluster.replicas is {}, and {} node(s) do not make so many equal groups",
                                 replicas, nodes.size()));
  Plan plan{.cut = cut_model(experiment, shape),
            .replicas = replicas,
            .selects_by_activations = retrieves_neurons(experiment.sampling.mode)};
  std::vector<ModeletCost> costs;
  uint64_t sync_bytes = 0;  // whoever holds the modelet that needs most
  for (const ModeletSpec& modelet : plan.cut) {
    costs.push_back(predict_cost(modelet, experiment, shape));
    plan.parameters += modelet.parameters();
    sync_bytes = std::max(sync_bytes, sync_buffer_bytes(modelet, experiment));
  }
  const uint64_t fixed = kProgramBytes + buffer_bytes(experiment) + label_bytes(shape) + sync_bytes;
  std::vector<NodeCapacity> places = weakest_of_replicas(nodes, replicas);
  const size_t layers = plan.cut.back().layer + 1;
  std::vector<StepWork> of_batch;
  for (uint32_t layer = 0; layer < layers; ++layer) of_batch.push_back(batch_work(layer, experiment, shape));
  std::vector<double> alone;
  for (const NodeCapacity& place : places) {
    double seconds = 0;
    for (const ModeletCost& cost : costs) seconds += sum(cost.work.seconds(place));
    for (const StepWork& work : of_batch) seconds += sum(work.seconds(place));
    alone.push_back(seconds);
  }
  even_out(places, alone);
  plan.owner = Placer(plan.cut, costs, of_batch, places, fixed).place();

  std::vector<double> slowest(layers, 0);
  const auto count = static_cast<uint32_t>(nodes.size());
  plan.exchanges = step_exchanges(experiment, plan.cut, plan.owner, static_cast<uint32_t>(places.size()));
  for (uint32_t n = 0; n < count; ++n) {
    NodePlan node{.name = nodes[n].name, .memory_bytes = fixed, .memory_limit = nodes[n].memory_bytes};
    node.layers.resize(layers);
    const size_t place = n % places.size();
    for (const ModeletSpec& modelet : plan.cut) {
      if (plan.owner[modelet.id] != place) continue;
      node.modelets.push_back(modelet.id);
      node.memory_bytes += costs[modelet.id].memory_bytes;
      add(node.layers[modelet.layer], costs[modelet.id].work.seconds(nodes[n]));
    }
    for (size_t layer = 0; layer < layers && !node.modelets.empty(); ++layer) {  // idle nodes leave the group
      add(node.layers[layer], of_batch[layer].seconds(nodes[n]));
      const double seconds = sum(node.layers[layer]);
      slowest[layer] = std::max(slowest[layer], seconds);
      node.seconds_per_step += seconds;
    }
    for (const Exchange& exchange : plan.exchanges)
      node.bytes_sent_per_step +=
          std::accumulate(exchange.bytes[place].begin(), exchange.bytes[place].end(), uint64_t{0});
    for (const uint32_t modelet : node.modelets)
      node.bytes_sent_per_step += sync_bytes_per_step(plan.cut[modelet], experiment, shape);
    plan.nodes.push_back(std::move(node));
  }
  plan.seconds_per_step = std::accumulate(slowest.begin(), slowest.end(), 0.0);
  plan.dense_allreduce_bytes = 2 * (count - 1) * plan.parameters * sizeof(float) / count;
  return plan;
}

std::string bytes_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string to_text(const Plan& plan) {
  size_t name_width = 4;
  for (const NodePlan& node : plan.nodes) name_width = std::max(name_width, node.name.size());
  const std::string replicas = plan.replicas > 1 ? fmt::format(" as {} replicas", plan.replicas) : "";
  std::string text = fmt::format(
      "{} parameters in {} modelets on {} node(s){}\n\n{:<{}}  {:>8}  {:>11}  {:>11}  {:>11}  {:>11}\n",
      plan.parameters, plan.cut.size(), plan.nodes.size(), replicas, "node", name_width, "modelets", "memory",
      "of", "compute", "sent/step");
  for (const NodePlan& node : plan.nodes)
    text += fmt::format("{:<{}}  {:>8}  {:>11}  {:>11}  {:>8.2f} ms  {:>11}\n", node.name, name_width,
                        node.modelets.size(), bytes_text(node.memory_bytes), bytes_text(node.memory_limit),
                        node.seconds_per_step * 1e3, bytes_text(node.bytes_sent_per_step));
  text += fmt::format("\nA step computes for about {:.2f} ms (predicted).", plan.seconds_per_step * 1e3);
  if (plan.nodes.size() > 1) {
    uint64_t most = 0;
    for (const NodePlan& node : plan.nodes) most = std::max(most, node.bytes_sent_per_step);
    text += fmt::format(
        " A dense fp32 all-reduce would send {} a node and step, {:.0f} times as much.",
        bytes_text(plan.dense_allreduce_bytes),
        static_cast<double>(plan.dense_allreduce_bytes) / static_cast<double>(std::max<uint64_t>(most, 1)));
  }
  return text + "\n";
}

}  // namespace modelet::scheduler
