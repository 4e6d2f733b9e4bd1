#include "scheduler/plan/cost_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/array/bf16.h"
#include "base/array/padding.h"
#include "base/experiment/memory.h"

namespace modelet::scheduler {
namespace {

constexpr double kGiga = 1e9, kNano = 1e-9;
constexpr double kFlopsPerProduct = 2;

// Within a step, products reach this share of their separately measured rate.
constexpr double kProductShare = 0.82;

// Nanoseconds on one core of kReferenceGflops (docs/decisions/0019-a-cost-model-of-measured-parts.md).
constexpr double kSortEntry = 16;      // gather one feature of a sample, and sort it by feature
constexpr double kSumEntry = 4.5;      // add its weight row, or its sample's gradient row, to a sum
constexpr double kSumValue = 0.1;      // for each value of such a row
constexpr double kUpdateRow = 12;      // change a row with the optimiser
constexpr double kUpdateValue = 0.35;  // for each value of that row
constexpr double kSelectNeuron = 26;   // choose an active neuron
constexpr double kSelectLabel = 40;    // look for a label of the batch among the active neurons
constexpr double kGatherValue = 0.5;   // lay out one weight of an active neuron for the products
constexpr double kPair = 2;            // lay out a pair of an active label, and clear it
constexpr double kLane = 0.05;         // for a feature of a sample and one active label
constexpr double kLogit = 0.72;        // exponential, sums and rounding of the gradient, for one logit
constexpr double kActivation = 4.5;    // lay out an activation, and combine its gradient

}  // namespace

double sum(const PhaseSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

PhaseSeconds StepWork::seconds(const NodeCapacity& node) const {
  PhaseSeconds seconds{};
  for (size_t phase = 0; phase < kStepPhases; ++phase) {
    const Work& work = phases[phase];
    seconds[phase] =
        (work.flops / node.gflops + work.bf16_flops / node.bf16_rate()) / (kGiga * kProductShare) +
        work.traffic_bytes / (node.memory_gbps * kGiga) +
        work.reference_seconds * kReferenceGflops / node.gflops;
  }
  return seconds;
}

// The number of candidates that a sample keeps in the whole layer. Each output modelet keeps its part of
// sampling.top, rounded up.
double CostModel::candidates_kept() const {
  const uint64_t modelets = std::clamp<uint64_t>(experiment_.modelets.output_modelets, 1, shape_.labels);
  return static_cast<double>((experiment_.sampling.top + modelets - 1) / modelets * modelets);
}

// The number of samples in a batch that retrieve neurons.
double CostModel::asking_samples() const {
  const double batch = experiment_.train.batch;
  if (experiment_.sampling.mode == SamplingMode::kLshPerSample) return batch;
  return std::max(1.0, batch / experiment_.sampling.query_every);
}

double CostModel::features_of_batch() const { return experiment_.train.batch * shape_.features_per_row; }

// The forward pass reads touched parameters. The update reads and writes them together with their optimiser
// state. Their gradients stay in the cache.
double CostModel::read_traffic(double parameters, LayerKind kind) const {
  return parameters * static_cast<double>(value_bytes(kind, experiment_.model.precision));
}
double CostModel::update_traffic(double parameters, LayerKind kind) const {
  const auto state = static_cast<double>(optimizer_values_per_parameter(experiment_.optimizer.kind));
  constexpr double kReadAndWritten = 2;
  return kReadAndWritten * (1 + state) * read_traffic(parameters, kind);
}

// All labels of the training samples; a node has only those of its own neurons.
double CostModel::train_label_bytes() const {
  return sizeof(uint32_t) * static_cast<double>(shape_.train_rows) * shape_.labels_per_row;
}

// Bytes of the logits of the active neurons of the output layer and, if not all neurons are active, of their
// gathered rows. In bf16 the rows are always gathered, in two layouts or as floats; where products take pairs
// of bf16 the activations are laid out as well (shard/layers/output/output_products.cc). What the direct path
// adds to the logits is included.
double CostModel::active_bytes() const {
  const ActiveNeurons active = active_neurons();
  if (experiment_.sampling.mode == SamplingMode::kLshPerSample)
    return active.pairs *
           (sizeof(uint32_t) + sizeof(uint8_t) + sizeof(float));  // row, whether it is a label, logit
  const bool pairs = experiment_.model.precision == Precision::kBf16;
  const double logits =
      active.rows *
      static_cast<double>(padded(samples_of_set(experiment_.sampling, experiment_.train.batch)));
  const double gathered = pairs || experiment_.sampling.mode != SamplingMode::kFull
                              ? active.rows * experiment_.model.hidden.back()
                              : 0;
  const double direct = experiment_.model.centroids ? logits : 0;
  return (logits + gathered + direct) * sizeof(float) + (pairs ? logits * sizeof(Bf16) : 0);
}

StepWork CostModel::input_work(const ModeletSpec& modelet) const {
  const auto columns = static_cast<double>(modelet.neurons());
  const double summed = features_of_batch() * columns;
  const double updated = touched_features() * columns;
  StepWork work;
  work.at(StepPhase::kForward) = {.traffic_bytes = read_traffic(summed, modelet.kind),
                                  .reference_seconds = kNano * kSumValue * summed};
  work.at(StepPhase::kUpdate) = {.traffic_bytes = update_traffic(updated, modelet.kind),
                                 .reference_seconds = kNano * (kSumValue * summed + kUpdateValue * updated)};
  return work;
}

void CostModel::multiply(Work& work, double flops) const {
  (experiment_.model.precision == Precision::kBf16 ? work.bf16_flops : work.flops) += flops;
}

StepWork CostModel::hidden_work(const ModeletSpec& modelet) const {
  const auto rows = static_cast<double>(modelet.neurons());
  const double parameters = rows * static_cast<double>(modelet.inputs),
               products = kFlopsPerProduct * experiment_.train.batch * parameters,
               read = read_traffic(parameters, modelet.kind);
  StepWork work;
  work.at(StepPhase::kForward) = {.traffic_bytes = read};
  work.at(StepPhase::kBackward) = {.traffic_bytes = read};
  work.at(StepPhase::kUpdate) = {
      .traffic_bytes = update_traffic(parameters, modelet.kind),
      .reference_seconds = kNano * (kUpdateRow * rows + kUpdateValue * parameters)};
  for (const StepPhase phase : {StepPhase::kForward, StepPhase::kBackward, StepPhase::kUpdate})
    multiply(work.at(phase), products);
  return work;
}

StepWork CostModel::output_work(const ModeletSpec& modelet) const {
  const ActiveNeurons active = active_neurons();
  const double share =
      static_cast<double>(modelet.neurons()) / static_cast<double>(shape_.labels);  // labels spread evenly
  const auto inputs = static_cast<double>(modelet.inputs);
  const double rows = active.rows * share, parameters = rows * inputs, logits = active.pairs * share;
  const double changed = active.changed * share;
  const double products = kFlopsPerProduct * logits * inputs;

  StepWork work;
  work.at(StepPhase::kSelect) = {
      .traffic_bytes = read_traffic(parameters, modelet.kind),
      .reference_seconds = kNano * (kSelectNeuron * rows + kGatherValue * parameters)};
  if (const Experiment::Sampling& sampling = experiment_.sampling; retrieves_neurons(sampling.mode)) {
    const auto neurons = static_cast<double>(modelet.neurons());
    const double asking = asking_samples();
    const double ranked = asking * std::min<double>(sampling.candidates, neurons);
    Work& select = work.at(StepPhase::kSelect);
    select.flops += kFlopsPerProduct * ranked * inputs;
    select.traffic_bytes += ranked * inputs * sizeof(float);
    // Projections use pairs of bf16, whatever the precision of the weights. On machines that compute such
    // products in fp32, they are slower than predicted here.
    if (!uses_hash_tables(sampling)) {
      const double projections = neurons * std::min<double>(sampling.rank, inputs);
      select.bf16_flops += kFlopsPerProduct * asking * projections;
      select.traffic_bytes += projections * sizeof(Bf16);
    }
  }
  if (experiment_.model.centroids) {
    const double of_label = static_cast<double>(most_pairs(modelet, experiment_, shape_)) /
                            static_cast<double>(modelet.neurons());
    work.at(StepPhase::kSelect).reference_seconds +=
        kNano * rows *
        (kPair * of_label +
         kLane * shape_.features_per_row * samples_of_set(experiment_.sampling, experiment_.train.batch));
  }
  work.at(StepPhase::kOutputForward) = {.reference_seconds = kNano * kLogit * logits};
  multiply(work.at(StepPhase::kOutputForward), 2 * products);  // logits, gradient of the inputs
  work.at(StepPhase::kUpdate) = {.traffic_bytes = update_traffic(changed * inputs, modelet.kind),
                                 .reference_seconds = kNano * changed * (kUpdateRow + kUpdateValue * inputs)};
  multiply(work.at(StepPhase::kUpdate), products);
  return work;
}

ActiveNeurons CostModel::active_neurons() const {
  const double batch = experiment_.train.batch, labels = static_cast<double>(shape_.labels);
  const double together = samples_of_set(experiment_.sampling, experiment_.train.batch),
               sets = batch / together;
  const double wanted = shape_.labels_per_row;
  const double uniform = experiment_.sampling.sparsity > 0 ? 0 : experiment_.sampling.uniform;
  const double found = experiment_.sampling.sparsity > 0 ? 0 : candidates_kept();
  const double share = experiment_.sampling.sparsity * labels;  // 0: sampling.uniform decides
  const auto capped = [labels, share](double rows) { return std::min(labels, std::max(share, rows)); };
  // As if each set drew its neurons at random.
  const auto shared = [&](double rows) -> ActiveNeurons {
    const double in_no_set = std::pow(1 - rows / labels, sets);
    return {sets * rows, batch * rows, sets == 1 ? rows : labels * (1 - in_no_set)};
  };
  switch (experiment_.sampling.mode) {
    case SamplingMode::kFull:
      return {labels, batch * labels, labels};
    case SamplingMode::kUniform:
      return shared(capped(together * wanted + uniform));
    case SamplingMode::kLsh:
      return shared(capped(together * (wanted + found) + uniform));
    case SamplingMode::kLshPerSample: {
      const double each = capped(wanted + found + uniform), rows = capped(batch * (wanted + found) + uniform);
      return {rows, batch * each, rows};
    }
  }
  return {};
}

double CostModel::touched_features() const {
  const auto features = static_cast<double>(shape_.features);
  if (features <= 1) return features;
  return features * -std::expm1(features_of_batch() * std::log1p(-1 / features));
}

uint64_t CostModel::buffer_bytes() const {
  constexpr uint64_t kCopies = 4;  // values and gradients, encoded and decoded
  uint64_t widths = 0;
  for (const uint64_t width : experiment_.model.hidden) widths += width;
  return kCopies * experiment_.train.batch * widths * sizeof(float);
}

uint64_t CostModel::label_bytes() const {
  const double test_labels = static_cast<double>(shape_.test_rows) * shape_.labels_per_row;
  return sizeof(uint64_t) * (shape_.train_rows + shape_.test_rows) +
         static_cast<uint64_t>(sizeof(uint32_t) * test_labels);
}

ModeletCost CostModel::of(const ModeletSpec& modelet) const {
  ModeletCost cost{.memory_bytes = modelet_bytes(modelet, experiment_)};
  switch (modelet.kind) {
    case LayerKind::kInput:
      cost.work = input_work(modelet);
      break;
    case LayerKind::kHidden:
      cost.work = hidden_work(modelet);
      break;
    case LayerKind::kOutput:
      cost.work = output_work(modelet);
      cost.memory_bytes +=
          pair_bytes(modelet, experiment_, shape_) +
          static_cast<uint64_t>((active_bytes() + train_label_bytes()) *
                                static_cast<double>(modelet.neurons()) / static_cast<double>(shape_.labels));
      break;
  }
  return cost;
}

StepWork CostModel::of_batch(uint32_t layer) const {
  const double batch = experiment_.train.batch;
  StepWork work;
  if (layer == 0) {  // the input layer: every node handles all features of the batch
    const double entries = features_of_batch();
    work.at(StepPhase::kForward).reference_seconds = kNano * (kSortEntry + kSumEntry) * entries;
    work.at(StepPhase::kUpdate).reference_seconds =
        kNano * (kSumEntry * entries + kUpdateRow * touched_features());
    return work;
  }
  const double values = batch * experiment_.model.hidden[layer - 1];  // inputs of the layer
  work.at(layer == experiment_.model.hidden.size() ? StepPhase::kOutputForward : StepPhase::kForward)
      .reference_seconds = kNano * kActivation * values;
  if (layer == experiment_.model.hidden.size())
    work.at(StepPhase::kSelect).reference_seconds = kNano * kSelectLabel * batch * shape_.labels_per_row;
  return work;
}

}  // namespace modelet::scheduler
