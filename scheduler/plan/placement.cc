#include "scheduler/plan/placement.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/experiment/memory.h"
#include "scheduler/plan/bytes_text.h"
#include "scheduler/plan/search.h"

namespace modelet::scheduler {
namespace {

constexpr uint64_t kProgramBytes = uint64_t{64} << 20;  // program, sockets, the data's resident pages

// Repeated measurements of one machine, of half a second each, differ by up to this share
// (docs/decisions/0021-nearly-equal-nodes-are-equal.md).
constexpr double kSpeedNoise = 0.15;

// For each rank of a replica, the weakest of the nodes that have this rank in the replicas.
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

void add(PhaseSeconds& to, const PhaseSeconds& seconds) {
  for (size_t phase = 0; phase < kStepPhases; ++phase) to[phase] += seconds[phase];
}

// Gives nodes that a measurement cannot tell apart the mean of their rates, so that equal machines get equal
// shares. If the plan followed the noise, one node would wait for another in each step. seconds[i] is the
// time of the whole model on node i alone.
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

// The input of the search.
struct Costs {
  std::vector<ModeletCost> modelets;  // [partition]
  std::vector<StepWork> of_batch;     // [layer], the same on every node
  uint64_t fixed_bytes = 0;           // that each node needs in any case

  double seconds_alone(const NodeCapacity& node) const {
    double seconds = 0;
    for (const ModeletCost& cost : modelets) seconds += sum(cost.work.seconds(node));
    for (const StepWork& work : of_batch) seconds += sum(work.seconds(node));
    return seconds;
  }
};

Costs costs_of(const std::vector<ModeletSpec>& partition, const Experiment& experiment,
               const DataShape& shape) {
  const CostModel model(experiment, shape);
  Costs costs;
  uint64_t sync_bytes = 0;  // of the modelet that needs most: any node may hold it
  for (const ModeletSpec& modelet : partition) {
    costs.modelets.push_back(model.of(modelet));
    sync_bytes = std::max(sync_bytes, sync_buffer_bytes(modelet, experiment));
  }
  costs.fixed_bytes = kProgramBytes + model.buffer_bytes() + model.label_bytes() + sync_bytes;
  for (uint32_t layer = 0; layer <= partition.back().layer; ++layer)
    costs.of_batch.push_back(model.of_batch(layer));
  return costs;
}

// What the node at `place` in its replica holds, computes and sends.
NodePlan plan_of_node(const Plan& plan, const Costs& costs, const NodeCapacity& capacity,
                      const std::vector<uint32_t>& modelets, size_t place) {
  NodePlan node{.name = capacity.name,
                .modelets = modelets,
                .memory_bytes = costs.fixed_bytes,
                .memory_limit = capacity.memory_bytes};
  node.layers.resize(costs.of_batch.size());
  for (const uint32_t modelet : modelets) {
    node.memory_bytes += costs.modelets[modelet].memory_bytes;
    add(node.layers[plan.partition[modelet].layer], costs.modelets[modelet].work.seconds(capacity));
  }
  for (size_t layer = 0; layer < node.layers.size() && !modelets.empty();
       ++layer) {  // idle nodes leave the group
    add(node.layers[layer], costs.of_batch[layer].seconds(capacity));
    node.seconds_per_step += sum(node.layers[layer]);
  }
  for (const StepExchange& exchange : plan.exchanges) node.bytes_sent_per_step += exchange.sent(place);
  return node;
}

// Compares the plan with the fastest node alone, which works through the batches of all replicas.
void compare_with_one_node(Plan& plan, const Costs& costs, std::span<const NodeCapacity> nodes) {
  plan.alone_seconds = std::numeric_limits<double>::infinity();
  for (const NodeCapacity& node : nodes)
    plan.alone_seconds = std::min(plan.alone_seconds, plan.replicas * costs.seconds_alone(node));
  plan.alone_memory_bytes = costs.fixed_bytes;
  for (const ModeletCost& cost : costs.modelets) plan.alone_memory_bytes += cost.memory_bytes;
}

}  // namespace

Plan make_plan(const Experiment& experiment, const DataShape& shape, std::span<const NodeCapacity> nodes) {
  MODELET_CHECK(!nodes.empty());
  const uint32_t replicas = experiment.cluster.replicas;
  if (nodes.size() % replicas != 0)
    throw UsageError(fmt::format("cluster.replicas is {}, and {} node(s) cannot form that many equal groups",
                                 replicas, nodes.size()));
  Plan plan{.partition = partition_model(experiment, shape),
            .replicas = replicas,
            .selects_by_activations = retrieves_neurons(experiment.sampling.mode)};
  for (const ModeletSpec& modelet : plan.partition) plan.parameters += modelet.parameters();
  const Costs costs = costs_of(plan.partition, experiment, shape);

  std::vector<NodeCapacity> places = weakest_of_replicas(nodes, replicas);
  std::vector<double> alone;
  for (const NodeCapacity& place : places) alone.push_back(costs.seconds_alone(place));
  even_out(places, alone);
  plan.owner = find_placement({.partition = plan.partition,
                               .costs = costs.modelets,
                               .batch_work = costs.of_batch,
                               .nodes = places,
                               .fixed_bytes = costs.fixed_bytes})
                   .owner;
  plan.exchanges =
      step_exchanges(experiment, plan.partition, plan.owner, static_cast<uint32_t>(places.size()));

  std::vector<std::vector<uint32_t>> held(places.size());
  std::vector<uint64_t> sync_bytes(places.size(), 0);
  for (const ModeletSpec& modelet : plan.partition) {
    held[plan.owner[modelet.id]].push_back(modelet.id);
    sync_bytes[plan.owner[modelet.id]] += sync_bytes_per_step(modelet, experiment, shape);
  }
  std::vector<double> slowest(costs.of_batch.size(), 0);
  for (size_t n = 0; n < nodes.size(); ++n) {
    const size_t place = n % places.size();
    NodePlan node = plan_of_node(plan, costs, nodes[n], held[place], place);
    node.sync_bytes_per_step = sync_bytes[place];
    node.bytes_sent_per_step += sync_bytes[place];
    for (size_t layer = 0; layer < slowest.size(); ++layer)
      slowest[layer] = std::max(slowest[layer], sum(node.layers[layer]));
    plan.nodes.push_back(std::move(node));
  }
  plan.seconds_per_step = std::accumulate(slowest.begin(), slowest.end(), 0.0);
  plan.dense_allreduce_bytes = 2 * (nodes.size() - 1) * plan.parameters * sizeof(float) / nodes.size();
  compare_with_one_node(plan, costs, nodes);
  return plan;
}

double wire_seconds(const Plan& plan, const Link& link) {
  uint64_t sync_bytes = 0;
  for (const NodePlan& node : plan.nodes) sync_bytes = std::max(sync_bytes, node.sync_bytes_per_step);
  return wire_seconds(plan.exchanges, link) + static_cast<double>(sync_bytes) / link.bytes_per_second;
}

namespace {

// Text about the gain from several nodes. In the best case all messages travel while nodes compute, in the
// worst case all computing waits for them.
std::string comparison_text(const Plan& plan, const Link& link) {
  const double compute = plan.seconds_per_step, wire = wire_seconds(plan, link);
  const double least = std::max(compute, wire), most = compute + wire;
  uint64_t largest = 0;
  for (const NodePlan& node : plan.nodes) largest = std::max(largest, node.memory_limit);
  std::string text = fmt::format(
      "Its messages take {:.2f} ms on links of {:g} Gbit/s and {:g} ms round trip, so a step takes {:.2f} to "
      "{:.2f} ms.\n",
      wire * 1e3, link.bytes_per_second * 8 / 1e9, link.round_trip_seconds * 1e3, least * 1e3, most * 1e3);
  if (plan.alone_memory_bytes > largest)
    return text + fmt::format("One node alone does not have the memory: the model needs {}.\n",
                              bytes_text(plan.alone_memory_bytes));
  text +=
      fmt::format("The fastest node alone takes {:.2f} ms for as many samples: ", plan.alone_seconds * 1e3);
  if (plan.alone_seconds > most)
    return text + fmt::format("{} nodes are {:.1f} to {:.1f} times as fast.\n", plan.nodes.size(),
                              plan.alone_seconds / most, plan.alone_seconds / least);
  return text + fmt::format(
                    "it is {} {} nodes. A larger train.batch, a wider model or faster links make "
                    "several nodes pay.\n",
                    plan.alone_seconds < least ? "faster than" : "as fast as", plan.nodes.size());
}

}  // namespace

std::string to_text(const Plan& plan, const Link& link) {
  size_t name_width = 4;
  for (const NodePlan& node : plan.nodes) name_width = std::max(name_width, node.name.size());
  const std::string replicas = plan.replicas > 1 ? fmt::format(" as {} replicas", plan.replicas) : "";
  std::string text = fmt::format(
      "{} parameters in {} modelets on {} node(s){}\n\n{:<{}}  {:>8}  {:>11}  {:>11}  {:>11}  {:>11}\n",
      plan.parameters, plan.partition.size(), plan.nodes.size(), replicas, "node", name_width, "modelets",
      "memory", "of", "compute", "sent/step");
  for (const NodePlan& node : plan.nodes)
    text += fmt::format("{:<{}}  {:>8}  {:>11}  {:>11}  {:>8.2f} ms  {:>11}\n", node.name, name_width,
                        node.modelets.size(), bytes_text(node.memory_bytes), bytes_text(node.memory_limit),
                        node.seconds_per_step * 1e3, bytes_text(node.bytes_sent_per_step));
  text += fmt::format("\nA step computes for about {:.2f} ms (predicted).", plan.seconds_per_step * 1e3);
  if (plan.nodes.size() == 1) return text + "\n";
  uint64_t most = 0;
  for (const NodePlan& node : plan.nodes) most = std::max(most, node.bytes_sent_per_step);
  return text + " " + comparison_text(plan, link) +
         fmt::format("A dense fp32 all-reduce would send {} a node and step, {:.0f} times as much.\n",
                     bytes_text(plan.dense_allreduce_bytes),
                     static_cast<double>(plan.dense_allreduce_bytes) /
                         static_cast<double>(std::max<uint64_t>(most, 1)));
}

}  // namespace modelet::scheduler
