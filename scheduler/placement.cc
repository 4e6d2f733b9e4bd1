#include "scheduler/placement.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/sample_range.h"
#include "comm/codec.h"
#include "comm/envelope.h"

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

// Candidates that a sample keeps, over the layer: each output modelet keeps its part of sampling.top, rounded
// up.
double candidates_kept(const Experiment& experiment, const DataShape& shape) {
  const uint64_t modelets = std::clamp<uint64_t>(experiment.modelets.output_modelets, 1, shape.labels);
  return static_cast<double>((experiment.sampling.top + modelets - 1) / modelets * modelets);
}

ActiveNeurons active_neurons(const Experiment& experiment, const DataShape& shape) {
  const double batch = experiment.train.batch, labels = static_cast<double>(shape.labels);
  const double wanted = shape.labels_per_row;
  const double uniform = experiment.sampling.sparsity > 0 ? 0 : experiment.sampling.uniform;
  const double found = experiment.sampling.sparsity > 0 ? 0 : candidates_kept(experiment, shape);
  const double share = experiment.sampling.sparsity * labels;  // 0: sampling.uniform says
  const auto capped = [labels, share](double rows) { return std::min(labels, std::max(share, rows)); };
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

// Touched parameters are read by the forward pass, by the backward pass, and read and written with their
// optimiser state by the update.
double read_traffic(double parameters, LayerKind kind, const Experiment& experiment) {
  return parameters * static_cast<double>(value_bytes(kind, experiment));
}
double update_traffic(double parameters, LayerKind kind, const Experiment& experiment) {
  const auto state = static_cast<double>(optimizer_values_per_parameter(experiment.optimizer.kind));
  constexpr double kReadAndWritten = 2, kGradientPasses = 2;  // gradient: written, then read
  return kReadAndWritten * (1 + state) * read_traffic(parameters, kind, experiment) +
         kGradientPasses * parameters * kFloat;
}

// Blocks and bytes of a message, as docs/wire_format.md gives them.
struct MessageSize {
  uint64_t blocks = 0, bytes = 0;

  void add(const comm::Codec& codec, uint64_t rows, uint64_t cols) {
    constexpr uint64_t kBlockHeader = 24;
    ++blocks;
    bytes += kBlockHeader + codec.max_bytes(rows, cols);
  }
};

// What the nodes of a plan send each other in a step: one message a peer and round.
class Traffic {
 public:
  Traffic(const Experiment& experiment, const std::vector<ModeletSpec>& cut,
          const std::vector<uint32_t>& owner, uint32_t nodes)
      : experiment_(experiment),
        cut_(cut),
        owner_(owner),
        nodes_(nodes),
        codecs_(comm::exchange_codecs(experiment.exchange)),
        exact_(comm::require_codec("none")) {
    const uint32_t pieces = experiment.exchange.micro_batches;  // 0: the run chooses, and bytes grow with it
    split_batch(experiment.train.batch, pieces == 0 ? kTriedMicroBatches : pieces, ranges_);
  }

  // In the order of the step. Bytes are at most these: int8 and int4 leave out zeros where that is shorter.
  std::vector<Exchange> exchanges() const {
    std::vector<Exchange> all;
    if (nodes_ == 1) return all;
    const auto layers = static_cast<uint32_t>(experiment_.model.hidden.size());
    for (uint32_t layer = 0; layer < layers; ++layer)
      for (const SampleRange& range : ranges_) {
        const uint64_t notice = all.empty() ? 24 + 2 * sizeof(float) : 0;  // with the first activations
        all.push_back(
            exchange(Exchange::Kind::kActivations, layer, range.size(), [&](uint32_t from, uint32_t) {
              MessageSize message = activations(layer, from, range.size());
              message.bytes += notice;
              return message;
            }));
      }
    for (const SampleRange& range : ranges_)
      all.push_back(exchange(Exchange::Kind::kOutput, layers - 1, range.size(), [&](uint32_t, uint32_t to) {
        return output_exchange(layers - 1, to, range.size());
      }));
    for (uint32_t layer = layers - 1; layer-- > 0;)
      all.push_back(exchange(Exchange::Kind::kGradient, layer, experiment_.train.batch,
                             [&](uint32_t, uint32_t to) { return gradient_part(layer, to); }));
    if (experiment_.optimizer.clip != 0)
      all.push_back(exchange(Exchange::Kind::kClip, 0, experiment_.train.batch,
                             [&](uint32_t, uint32_t) { return one_number(); }));
    return all;
  }

 private:
  // A layer's columns that `node` owns, of some samples: a block for each modelet.
  MessageSize columns(const comm::Codec& codec, uint32_t layer, uint32_t node, uint64_t samples) const {
    MessageSize message;
    for (const ModeletSpec& modelet : cut_)
      if (modelet.layer == layer && owner_[modelet.id] == node)
        message.add(codec, samples, modelet.neurons());
    return message;
  }
  MessageSize activations(uint32_t layer, uint32_t node, uint64_t samples) const {
    return columns(*codecs_.activations, layer, node, samples);
  }
  // Statistics of the logits, and the part of the gradient that belongs to the peer's columns.
  MessageSize output_exchange(uint32_t layer, uint32_t peer, uint64_t samples) const {
    constexpr uint64_t kStatistics = 3;  // rows: maximum, sum of exponentials, loss
    MessageSize message = columns(*codecs_.gradients, layer, peer, samples);
    if (experiment_.model.loss == Loss::kSoftmax) {  // the part that the receiver rescales, and the other
      message.bytes *= 2;
      message.blocks *= 2;
    }
    message.add(exact_, kStatistics, samples);
    return message;
  }
  // Below the last hidden layer: the part of the gradient of the peer's columns, packed into one block.
  MessageSize gradient_part(uint32_t layer, uint32_t peer) const {
    uint64_t width = 0;
    for (const ModeletSpec& modelet : cut_)
      if (modelet.layer == layer && owner_[modelet.id] == peer) width += modelet.neurons();
    MessageSize message;
    message.add(*codecs_.gradients, experiment_.train.batch, width);
    return message;
  }
  MessageSize one_number() const {
    MessageSize message;
    message.add(exact_, 1, 1);
    return message;
  }

  // size_of(from, to): of a message.
  template <class SizeOf>
  Exchange exchange(Exchange::Kind kind, uint32_t layer, uint64_t samples, const SizeOf& size_of) const {
    Exchange result{.kind = kind, .layer = layer, .samples = samples};
    result.bytes.assign(nodes_, std::vector<uint64_t>(nodes_, 0));
    for (uint32_t from = 0; from < nodes_; ++from)
      for (uint32_t to = 0; to < nodes_; ++to)
        if (from != to) result.bytes[from][to] = with_envelope(size_of(from, to));
    return result;
  }

  static uint64_t with_envelope(const MessageSize& message) {
    constexpr uint64_t kEnvelope = 96;  // without blocks
    if (message.blocks > comm::kMaxBlocks)
      throw UsageError(
          fmt::format("a message of the run would hold {} matrices, more than the limit of {}: make "
                      "modelets.hidden_columns larger, or use more nodes",
                      message.blocks, comm::kMaxBlocks));
    return kEnvelope + message.bytes;
  }

  const Experiment& experiment_;
  const std::vector<ModeletSpec>& cut_;
  const std::vector<uint32_t>& owner_;
  const uint32_t nodes_;
  const comm::ExchangeCodecs codecs_;
  const comm::Codec& exact_;
  std::vector<SampleRange> ranges_;  // micro-batches
};

// Activations and gradients of the hidden layers in a step, which every node keeps whole.
uint64_t buffer_bytes(const Experiment& experiment) {
  constexpr uint64_t kCopies = 4;  // values and gradients, encoded and decoded
  uint64_t widths = 0;
  for (const uint64_t width : experiment.model.hidden) widths += width;
  return kCopies * experiment.train.batch * widths * kFloat;
}

// Logits of the active neurons of the output layer and, where not all neurons are active, their rows
// gathered. In bf16 all are gathered, in two layouts, and so are the activations (shard/output_products.cc).
double active_bytes(const Experiment& experiment, const DataShape& shape) {
  const ActiveNeurons active = active_neurons(experiment, shape);
  if (experiment.sampling.mode == SamplingMode::kLshPerSample)
    return active.pairs * (sizeof(uint32_t) + sizeof(uint8_t) + kFloat);  // row, whether it is a label, logit
  const bool pairs = experiment.model.precision == Precision::kBf16;
  const double logits = active.rows * static_cast<double>(padded(experiment.train.batch));
  const double gathered = pairs || experiment.sampling.mode != SamplingMode::kFull
                              ? active.rows * experiment.model.hidden.back()
                              : 0;
  return (logits + gathered) * kFloat + (pairs ? logits * sizeof(Bf16) : 0);
}

// ---- replicas

// Of the nodes that hold the same modelets.
std::vector<NodeCapacity> weakest_of_replicas(std::span<const NodeCapacity> nodes, uint32_t replicas) {
  const size_t ranks = nodes.size() / replicas;
  std::vector<NodeCapacity> weakest(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(ranks));
  for (size_t i = ranks; i < nodes.size(); ++i) {
    NodeCapacity& place = weakest[i % ranks];
    place.memory_bytes = std::min(place.memory_bytes, nodes[i].memory_bytes);
    place.gflops = std::min(place.gflops, nodes[i].gflops);
    place.memory_gbps = std::min(place.memory_gbps, nodes[i].memory_gbps);
  }
  return weakest;
}

// Rows change as if each step drew its own by chance; in several steps some are drawn again.
uint64_t sync_bytes_per_step(const ModeletSpec& modelet, const Experiment& experiment,
                             const DataShape& shape) {
  if (experiment.cluster.replicas == 1) return 0;
  const auto [row_count, cols] = row_shape(modelet);
  const auto rows = static_cast<double>(row_count);
  double touched = rows;  // in one step
  if (modelet.kind == LayerKind::kInput) touched = experiment.train.batch * shape.features_per_row;
  if (modelet.kind == LayerKind::kOutput)
    touched = active_neurons(experiment, shape).rows * rows / static_cast<double>(shape.labels);
  const double steps = experiment.exchange.local_steps;
  const double share = 1 - std::pow(1 - std::min(1.0, touched / rows), steps);
  const auto changed = static_cast<uint64_t>(rows * share);
  const comm::Codec& codec = *comm::exchange_codecs(experiment.exchange).gradients;
  uint64_t bytes = codec.max_bytes(changed, cols);
  if (modelet.kind != LayerKind::kInput) bytes += changed * kFloat;  // biases
  bytes += row_count / 8;                                            // which rows
  return (experiment.cluster.replicas - 1) * bytes / experiment.exchange.local_steps;
}

double sum(const PartSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

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
    join_neighbours();
    return owner_;
  }

  PartSeconds part_seconds(uint32_t modelet, size_t node) const {
    PartSeconds seconds{};
    for (size_t part = 0; part < kStepParts; ++part) {
      const Work& work = costs_[modelet].step[part];
      seconds[part] = std::max(work.flops / (nodes_[node].gflops * kGiga),
                               work.traffic_bytes / (nodes_[node].memory_gbps * kGiga)) /
                      kRooflineShare;
    }
    return seconds;
  }
  double seconds(uint32_t modelet, size_t node) const { return sum(part_seconds(modelet, node)); }

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

  // Who holds which of a layer's modelets of equal size makes no difference to the plan. Neighbours go to the
  // same node, which computes adjacent columns of the input layer together (shard/network.cc).
  void join_neighbours() {
    for (auto first = cut_.begin(); first != cut_.end();) {
      const auto last = std::find_if(first, cut_.end(), [&](const ModeletSpec& other) {
        return other.layer != first->layer || other.neurons() != first->neurons();
      });
      std::sort(owner_.begin() + (first - cut_.begin()), owner_.begin() + (last - cut_.begin()));
      first = last;
    }
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
  constexpr double kFlopsPerProduct = 2;
  const double batch = experiment.train.batch, neurons = static_cast<double>(modelet.neurons());
  const double inputs = static_cast<double>(modelet.inputs);
  const auto read = [&](double parameters) { return read_traffic(parameters, modelet.kind, experiment); };
  const auto updated = [&](double parameters) {
    return update_traffic(parameters, modelet.kind, experiment);
  };
  ModeletCost cost{.memory_bytes = modelet_bytes(modelet, experiment)};
  switch (modelet.kind) {
    case LayerKind::kInput: {
      const double nonzeros = batch * shape.features_per_row,
                   products = kFlopsPerProduct * nonzeros * neurons;
      const double touched = std::min(nonzeros, inputs) * neurons;
      cost.at(StepPart::kForward) = {products, nonzeros * neurons * kFloat};
      cost.at(StepPart::kUpdate) = {products, updated(touched)};
      break;
    }
    case LayerKind::kHidden: {
      const double parameters = inputs * neurons, products = kFlopsPerProduct * batch * parameters;
      cost.at(StepPart::kForward) = {products, read(parameters)};
      cost.at(StepPart::kBackward) = {products, read(parameters)};
      cost.at(StepPart::kUpdate) = {products, updated(parameters)};
      break;
    }
    case LayerKind::kOutput: {
      const ActiveNeurons active = active_neurons(experiment, shape);
      const double share =
          neurons / static_cast<double>(shape.labels);  // labels are spread evenly over the ranges
      const double products = kFlopsPerProduct * active.pairs * share * inputs;
      const double parameters = active.rows * share * inputs;
      cost.memory_bytes += static_cast<uint64_t>(active_bytes(experiment, shape) * share);
      cost.at(StepPart::kSelect) = {0, read(parameters)};
      cost.at(StepPart::kOutputForward) = {2 * products, read(parameters)};  // logits, gradient of the inputs
      cost.at(StepPart::kUpdate) = {products, updated(parameters)};
      if (is_hashed(experiment)) {
        const double ranked = batch * std::min<double>(experiment.sampling.candidates, neurons);
        Work& select = cost.at(StepPart::kSelect);
        select.flops += kFlopsPerProduct * ranked * inputs;
        select.traffic_bytes += ranked * inputs * kFloat;
      }
      break;
    }
  }
  return cost;
}

Plan make_plan(const Experiment& experiment, const DataShape& shape, std::span<const NodeCapacity> nodes) {
  MODELET_CHECK(!nodes.empty());
  const uint32_t replicas = experiment.cluster.replicas;
  if (nodes.size() % replicas != 0)
    throw UsageError(fmt::format("cluster.replicas is {}, and {} node(s) do not make so many equal groups",
                                 replicas, nodes.size()));
  Plan plan{.cut = cut_model(experiment, shape),
            .replicas = replicas,
            .selects_by_activations = is_hashed(experiment)};
  std::vector<ModeletCost> costs;
  uint64_t sync_bytes = 0;  // whoever holds the modelet that needs most
  for (const ModeletSpec& modelet : plan.cut) {
    costs.push_back(predict_cost(modelet, experiment, shape));
    plan.parameters += modelet.parameters();
    sync_bytes = std::max(sync_bytes, sync_buffer_bytes(modelet, experiment));
  }
  const uint64_t fixed = kProgramBytes + buffer_bytes(experiment) + sync_bytes;
  const std::vector<NodeCapacity> places = weakest_of_replicas(nodes, replicas);
  plan.owner = Placer(plan.cut, costs, places, fixed).place();
  const Placer placer(plan.cut, costs, nodes, fixed);

  const size_t layers = plan.cut.back().layer + 1;
  std::vector<double> slowest(layers, 0);
  const auto count = static_cast<uint32_t>(nodes.size());
  plan.exchanges =
      Traffic(experiment, plan.cut, plan.owner, static_cast<uint32_t>(places.size())).exchanges();
  for (uint32_t n = 0; n < count; ++n) {
    NodePlan node{.name = nodes[n].name, .memory_bytes = fixed, .memory_limit = nodes[n].memory_bytes};
    node.layers.resize(layers);
    const size_t place = n % places.size();
    for (const ModeletSpec& modelet : plan.cut) {
      if (plan.owner[modelet.id] != place) continue;
      node.modelets.push_back(modelet.id);
      node.memory_bytes += costs[modelet.id].memory_bytes;
      const PartSeconds seconds = placer.part_seconds(modelet.id, n);
      for (size_t part = 0; part < kStepParts; ++part) node.layers[modelet.layer][part] += seconds[part];
    }
    for (size_t layer = 0; layer < layers; ++layer) {
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
