#include "scheduler/placement.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/error.h"

namespace modelet::scheduler {
namespace {

constexpr double kGiga = 1e9;
constexpr uint64_t kFloat = sizeof(float);
constexpr uint64_t kProgramBytes = uint64_t{64} << 20;  // program, sockets, the data's resident pages
constexpr int kMostImprovements = 1000;

bool is_hashed(const Experiment& experiment) {
  return experiment.sampling.mode == SamplingMode::kLsh ||
         experiment.sampling.mode == SamplingMode::kLshPerSample;
}

// Neurons of an output layer that take part in a step: gathered once for the batch, or over all samples.
struct ActiveNeurons {
  double rows = 0;   // whose weights are read
  double pairs = 0;  // (sample, neuron) logits
};

ActiveNeurons active_neurons(const Experiment& experiment, const DataShape& shape) {
  const double batch = experiment.train.batch, labels = static_cast<double>(shape.labels);
  const double wanted = shape.labels_per_row, found = experiment.sampling.top,
               uniform = experiment.sampling.uniform;
  const auto capped = [labels](double rows) { return std::min(labels, rows); };
  switch (experiment.sampling.mode) {
    case SamplingMode::kFull:
      return {labels, batch * labels};
    case SamplingMode::kUniform: {
      const double rows = capped(batch * wanted + uniform);
      return {rows, batch * rows};
    }
    case SamplingMode::kLsh: {
      const double rows = capped(batch * (wanted + found) + uniform);
      return {rows, batch * rows};
    }
    case SamplingMode::kLshPerSample: {
      const double each = capped(wanted + found + uniform);
      return {capped(batch * (wanted + found) + uniform), batch * each};
    }
  }
  return {};
}

// Touched parameters are read forward and backward, and read and written with their optimiser state by the
// update.
double update_traffic(double parameters, const Experiment& experiment) {
  const double state = static_cast<double>(optimizer_bytes_per_parameter(experiment.optimizer.kind));
  constexpr double kReads = 2, kGradientPasses = 2;  // gradient: written, then read
  return parameters * ((kReads + kGradientPasses + 2) * kFloat + 2 * state);
}

// Encoded size of a matrix, as docs/wire_format.md gives it.
uint64_t encoded_bytes(const std::string& codec, uint64_t rows, uint64_t cols) {
  if (cols == 0) return 0;
  if (codec == "bf16") return rows * cols * 2;
  if (codec == "int8") return rows * (cols + kFloat);  // one scale a row
  return rows * cols * kFloat;
}

uint64_t columns_of(const std::vector<ModeletSpec>& cut, const std::vector<uint32_t>& owner, uint32_t layer,
                    uint32_t node) {
  uint64_t columns = 0;
  for (const ModeletSpec& modelet : cut)
    if (modelet.layer == layer && owner[modelet.id] == node) columns += modelet.neurons();
  return columns;
}

// Bytes that a node sends in a step: its columns of each hidden layer to everybody, and to every other node,
// for the columns that one owns, its part of the gradient.
uint64_t sent_bytes(const Experiment& experiment, const std::vector<ModeletSpec>& cut,
                    const std::vector<uint32_t>& owner, uint32_t node, uint32_t nodes) {
  constexpr uint64_t kStatistics = 3;  // floats a sample: maximum, sum of exponentials, loss
  const uint64_t batch = experiment.train.batch, peers = nodes - 1;
  const bool softmax = experiment.model.loss == Loss::kSoftmax;
  uint64_t bytes = 0;
  for (uint32_t layer = 0; layer < experiment.model.hidden.size(); ++layer) {
    bytes += peers * encoded_bytes(experiment.exchange.codec, batch, columns_of(cut, owner, layer, node));
    const bool below_output = layer + 1 == experiment.model.hidden.size();
    // Softmax: the positive part and the part that the receiver rescales travel as two matrices.
    const uint64_t matrices = below_output && softmax ? 2 : 1;
    for (uint32_t peer = 0; peer < nodes; ++peer)
      if (peer != node)
        bytes +=
            matrices * encoded_bytes(experiment.exchange.codec, batch, columns_of(cut, owner, layer, peer));
  }
  if (softmax) bytes += peers * batch * kStatistics * kFloat;
  return bytes;
}

// Activations, gradients and logits of a step that every node keeps.
uint64_t buffer_bytes(const Experiment& experiment, const DataShape& shape) {
  constexpr uint64_t kCopies = 4;  // values and gradients, encoded and decoded
  uint64_t widths = 0;
  for (const uint64_t width : experiment.model.hidden) widths += width;
  const auto logits = static_cast<uint64_t>(active_neurons(experiment, shape).pairs) * kFloat;
  return kCopies * experiment.train.batch * widths * kFloat + 2 * logits;
}

// Assigns modelets to nodes: longest processing time first (Graham 1969), then moves and swaps while they
// help.
class Placer {
 public:
  Placer(const std::vector<ModeletSpec>& cut, std::vector<ModeletCost> costs,
         std::span<const NodeCapacity> nodes, uint64_t fixed_bytes)
      : cut_(cut), costs_(std::move(costs)), nodes_(nodes), owner_(cut.size(), 0) {
    const size_t layers = cut.back().layer + 1;
    load_.assign(layers, std::vector<double>(nodes.size(), 0));
    memory_.assign(nodes.size(), fixed_bytes);
  }

  std::vector<uint32_t> place() {
    if (!greedy(by_time()) && !greedy(by_memory())) refuse();
    for (int i = 0; i < kMostImprovements && improve(); ++i) {
    }
    return owner_;
  }

  double seconds(uint32_t modelet, size_t node) const {
    const ModeletCost& cost = costs_[modelet];
    return std::max(cost.flops / (nodes_[node].gflops * kGiga),
                    cost.traffic_bytes / (nodes_[node].memory_gbps * kGiga));
  }

 private:
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
  const std::vector<ModeletCost> costs_;
  const std::span<const NodeCapacity> nodes_;
  std::vector<uint32_t> owner_;
  std::vector<std::vector<double>> load_;  // [layer][node] seconds
  std::vector<uint64_t> memory_;           // [node]
};

}  // namespace

ModeletCost predict_cost(const ModeletSpec& modelet, const Experiment& experiment, const DataShape& shape) {
  constexpr double kPasses = 3,
                   kFlopsPerProduct = 2;  // forward, gradient of the weights, gradient of the inputs
  const double batch = experiment.train.batch, neurons = static_cast<double>(modelet.neurons());
  const double inputs = static_cast<double>(modelet.inputs);
  ModeletCost cost{.memory_bytes = modelet_bytes(modelet, experiment)};
  switch (modelet.kind) {
    case LayerKind::kInput: {
      const double nonzeros = batch * shape.features_per_row;
      cost.flops = kPasses * kFlopsPerProduct * nonzeros * neurons;
      cost.traffic_bytes =
          nonzeros * neurons * kFloat + update_traffic(std::min(nonzeros, inputs) * neurons, experiment);
      break;
    }
    case LayerKind::kHidden:
      cost.flops = kPasses * kFlopsPerProduct * batch * inputs * neurons;
      cost.traffic_bytes = update_traffic(inputs * neurons, experiment);
      break;
    case LayerKind::kOutput: {
      const ActiveNeurons active = active_neurons(experiment, shape);
      const double share =
          neurons / static_cast<double>(shape.labels);  // labels are spread evenly over the ranges
      cost.flops = kPasses * kFlopsPerProduct * active.pairs * share * inputs;
      cost.traffic_bytes = update_traffic(active.rows * share * inputs, experiment);
      if (is_hashed(experiment)) {
        const double ranked = batch * std::min<double>(experiment.sampling.candidates, neurons);
        cost.flops += kFlopsPerProduct * ranked * inputs;
        cost.traffic_bytes += ranked * inputs * kFloat;
      }
      break;
    }
  }
  return cost;
}

Plan make_plan(const Experiment& experiment, const DataShape& shape, std::span<const NodeCapacity> nodes) {
  MODELET_CHECK(!nodes.empty());
  Plan plan{.cut = cut_model(experiment, shape)};
  std::vector<ModeletCost> costs;
  for (const ModeletSpec& modelet : plan.cut) {
    costs.push_back(predict_cost(modelet, experiment, shape));
    plan.parameters += modelet.parameters();
  }
  const uint64_t fixed = kProgramBytes + buffer_bytes(experiment, shape);
  Placer placer(plan.cut, costs, nodes, fixed);
  plan.owner = placer.place();

  const size_t layers = plan.cut.back().layer + 1;
  std::vector<double> slowest(layers, 0);
  const auto count = static_cast<uint32_t>(nodes.size());
  for (uint32_t n = 0; n < count; ++n) {
    NodePlan node{.name = nodes[n].name, .memory_bytes = fixed, .memory_limit = nodes[n].memory_bytes};
    std::vector<double> seconds(layers, 0);
    for (const ModeletSpec& modelet : plan.cut) {
      if (plan.owner[modelet.id] != n) continue;
      node.modelets.push_back(modelet.id);
      node.memory_bytes += costs[modelet.id].memory_bytes;
      seconds[modelet.layer] += placer.seconds(modelet.id, n);
    }
    for (size_t layer = 0; layer < layers; ++layer) slowest[layer] = std::max(slowest[layer], seconds[layer]);
    node.seconds_per_step = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    node.bytes_sent_per_step = sent_bytes(experiment, plan.cut, plan.owner, n, count);
    plan.nodes.push_back(std::move(node));
  }
  plan.seconds_per_step = std::accumulate(slowest.begin(), slowest.end(), 0.0);
  plan.dense_allreduce_bytes = 2 * (count - 1) * plan.parameters * kFloat / count;
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
  std::string text = fmt::format(
      "{} parameters in {} modelets on {} node(s)\n\n{:<{}}  {:>8}  {:>11}  {:>11}  {:>11}  {:>11}\n",
      plan.parameters, plan.cut.size(), plan.nodes.size(), "node", name_width, "modelets", "memory", "of",
      "compute", "sent/step");
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
