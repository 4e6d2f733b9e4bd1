#include "node_agent/train/labels/neurons.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/experiment/towers.h"
#include "comm/collectives/group.h"
#include "node_agent/step/exchange/sharding.h"
#include "node_agent/train/evaluation/classifiers.h"
#include "node_agent/train/evaluation/evaluator.h"
#include "shard/data/batch/batch.h"
#include "shard/data/batch/split.h"
#include "shard/inference/evaluation.h"
#include "shard/layers/forward.h"
#include "shard/layers/scoring/classifiers.h"
#include "shard/modelet/state.h"
#include "shard/modelet/take_neurons.h"

namespace modelet::agent {
namespace {

// Of a sample, the labels whose neurons a new label begins with.
constexpr size_t kAlike = 5;
constexpr uint64_t kFitEpochs = 8, kLeastSteps = 1500;  // docs/studies/new-labels.md
constexpr uint32_t kLeastDraws = 16;

// The experiment of a network of `labels` of the model's labels.
Experiment experiment_of(const Experiment& experiment, uint64_t labels, uint64_t of_model) {
  Experiment own = tower_experiment(experiment);
  own.modelets.output_modelets = static_cast<uint32_t>(std::min<uint64_t>(own.modelets.output_modelets, labels));
  Experiment::Sampling& sampling = own.sampling;
  if (sampling.mode == SamplingMode::kFull) return own;
  const double share = static_cast<double>(labels) / static_cast<double>(of_model);
  sampling.mode = SamplingMode::kUniform;
  sampling.uniform = std::max(kLeastDraws, static_cast<uint32_t>(std::lround(share * sampling.uniform)));
  return own;
}

// Scales of the direct path are learned for each class of label frequency. A class without labels of the model, into which new
// ones may fall, gets the scale of the class next to it, more frequent ones first.
void fill_scales(shard::Network& model) {
  std::array<bool, shard::kFrequencyClasses> seen{};
  for (const shard::Modelet* modelet : model.output().modelets())
    for (size_t row = 0; row < modelet->spec().neurons(); ++row)
      seen[shard::frequency_class(modelet->direct()->pairs.positives(row))] = true;
  for (shard::Modelet* modelet : model.output().modelets()) {
    float* const scales = modelet->direct()->scales.floats().row(0);
    for (size_t empty = 0; empty < seen.size(); ++empty) {
      if (seen[empty]) continue;
      size_t next = empty;
      while (next < seen.size() && !seen[next]) ++next;
      if (next == seen.size())
        for (next = empty; next > 0 && !seen[next]; --next) continue;
      scales[empty] = scales[next];
    }
  }
}

void add_row(shard::Network& network, uint32_t neuron, std::vector<float>& sum, double& bias) {
  for (const shard::Modelet* modelet : network.output().modelets()) {
    const ModeletSpec& spec = modelet->spec();
    if (neuron < spec.begin || neuron >= spec.end) continue;
    modelet->parameters().add_row(neuron - spec.begin, 1, sum.data());
    bias += modelet->parameters().bias(neuron - spec.begin);
  }
}

// Each neuron becomes the mean of those of the labels that the model takes the label's samples for.
void begin_like_others(shard::Network& network, shard::Network& model, const shard::Dataset& samples,
                       const LabelProgress& progress) {
  constexpr size_t kBatch = 512;
  shard::LabelRanker ranker(model.scoring(), model.pool());
  shard::ForwardPass pass;
  shard::Batch batch;
  shard::TopK best;
  const size_t width = network.experiment().model.hidden.back();
  struct Mean {
    std::vector<float> row;
    double bias = 0, count = 0;
  };
  std::vector<Mean> means(network.spread().neurons());
  const std::vector<uint32_t> rows = shard::all_rows(samples.rows());
  for (size_t first = 0; first < rows.size(); first += kBatch) {
    const auto some = std::span(rows).subspan(first, std::min(kBatch, rows.size() - first));
    batch.assign(samples, some, false);
    shard::forward(model, batch, pass);
    ranker.rank_dense(pass.output_input_transposed(), batch.size(), kAlike, best, &batch);
    for (size_t s = 0; s < batch.size(); ++s) {
      const shard::Sample sample = samples.sample(some[s]);
      for (const uint32_t label : sample.labels) {
        const uint32_t neuron = network.spread().neuron(label);
        if (neuron == shard::LabelSpread::kNoNeuron) continue;
        Mean& mean = means[neuron];
        mean.row.resize(width);
        for (const uint32_t other : best.labels(s)) {
          if (other == shard::TopK::kNoLabel) continue;
          add_row(model, model.spread().neuron(other), mean.row, mean.bias);
          ++mean.count;
        }
      }
    }
    if (progress) progress("finds labels like the new ones", static_cast<double>(first) / static_cast<double>(rows.size()));
  }
  for (shard::Modelet* modelet : network.output().modelets())
    for (size_t row = 0; row < modelet->spec().neurons(); ++row) {
      Mean& mean = means[modelet->spec().begin + row];
      if (mean.count == 0) continue;
      for (float& weight : mean.row) weight /= static_cast<float>(mean.count);
      modelet->parameters().set_row(row, mean.row.data());
      modelet->parameters().bias(row) = static_cast<float>(mean.bias / mean.count);
    }
}

// One step of the output layer alone.
void step_output(shard::Network& network, const shard::LossFunction& loss, const shard::Batch& batch,
                 const shard::ForwardPass& pass, const shard::UpdateRule& rule) {
  shard::OutputLayer& output = network.output();
  output.select(batch, pass.output_input(), rule.step);
  output.gather();
  output.forward(pass.output_input(), pass.output_input_transposed(), {0, batch.size()});
  const ConstMatrix statistics = output.statistics();
  shard::BatchLoss result;
  loss.combine(batch, std::span(&statistics, 1), result);
  if (!std::isfinite(result.loss)) throw Error("the fit of neurons diverged: the loss is not a finite number; lower train.learning_rate");
  output.update(pass.output_input(), result.factors.front().data(), result.target_factor.data(), rule);
  output.maintain(pass.output_input(), rule.step);
}

// A network of these labels, whose output layer is at its beginning.
std::unique_ptr<shard::Network> network_of(std::vector<uint32_t> labels, const shard::Checkpoint& checkpoint,
                                           shard::Network& model, const shard::Dataset& samples) {
  DataShape shape = model.shape();
  shape.labels = samples.labels();
  shape.train_rows = samples.rows();
  shape = tower_shape(shape, labels.size(), samples.label_entries());
  const Experiment experiment = experiment_of(model.experiment(), labels.size(), model.shape().labels);
  auto network = std::make_unique<shard::Network>(experiment, shape, partition_model(experiment, shape), true, model.pool(),
                                                  model.features(), shard::LabelSpread(std::move(labels), samples.labels()));
  network->initialise();
  for (const auto& modelet : network->modelets())
    if (modelet->spec().kind != LayerKind::kOutput) shard::restore_modelet(*modelet, checkpoint);
  return network;
}

}  // namespace

std::unique_ptr<shard::Network> neurons_of_labels(const shard::Checkpoint& checkpoint, shard::Network& model,
                                                  std::vector<uint32_t> labels, const shard::Dataset& samples, size_t given) {
  auto network = network_of(std::move(labels), checkpoint, model, samples);
  shard::Network* const parts[] = {&model};
  take_labels(*network, parts);
  const std::vector<uint32_t> rows = shard::all_rows(given);
  for (shard::Modelet* modelet : network->output().modelets())
    if (shard::Direct* const direct = modelet->direct()) {
      const shard::Pairs before = direct->pairs.add(samples, rows, network->spread(), network->pool());
      if (direct->classifiers) direct->classifiers = direct->classifiers->moved(before, direct->pairs);
    }
  network->set_scoring();
  shard::keep_classifiers(network->scoring());
  if (std::vector<uint32_t> counts = network->label_counts(); !counts.empty()) {
    for (const uint32_t row : rows)
      for (const uint32_t label : samples.sample(row).labels) ++counts[label];
    network->set_label_counts(counts);
  }
  return network;
}

std::unique_ptr<shard::Network> neurons_of_new_labels(const shard::Checkpoint& checkpoint, shard::Network& model,
                                                      const shard::Dataset& samples, const LabelProgress& progress) {
  std::vector<uint32_t> own(samples.labels() - model.shape().labels);
  std::iota(own.begin(), own.end(), static_cast<uint32_t>(model.shape().labels));
  auto network = network_of(std::move(own), checkpoint, model, samples);
  network->build_pairs(samples, shard::all_rows(samples.rows()));
  network->set_label_counts(shard::count_labels(samples));
  if (shard::Direct* const theirs = model.output().modelets().front()->direct()) {
    fill_scales(model);
    for (shard::Modelet* modelet : network->output().modelets()) {
      const auto from = theirs->scales.arrays(), to = modelet->direct()->scales.arrays();
      for (size_t a = 0; a < to.size(); ++a) to[a].unpack(from[a].packed());
    }
  }
  begin_like_others(*network, model, samples, progress);
  return network;
}

void fit_rows(shard::Network& network, const shard::Dataset& samples, std::vector<uint32_t> rows, const LabelProgress& progress) {
  const Experiment& experiment = network.experiment();
  shard::BatchOrder order(std::move(rows), experiment.train.batch, experiment.train.seed);
  const auto loss = shard::make_loss(experiment.model.loss);
  const shard::AdamCorrections corrections(experiment.optimizer.beta1, experiment.optimizer.beta2);
  shard::Batch batch;
  shard::ForwardPass pass;
  const uint64_t steps = std::max(kLeastSteps, kFitEpochs * order.steps_per_epoch());
  for (uint64_t step = 0; step < steps; ++step) {
    batch.assign(samples, order.rows(step), false);
    shard::forward(network, batch, pass);
    // From the rate of the experiment down to zero: what is fitted last stays.
    const auto rate = experiment.train.learning_rate * (1 - static_cast<float>(step) / static_cast<float>(steps));
    step_output(network, *loss, batch, pass, {experiment.optimizer, corrections, step, rate});
    if (progress) progress("fits neurons", static_cast<double>(step) / static_cast<double>(steps));
  }
}

void fit_classifiers_of(shard::Network& network, const shard::Dataset& samples, const LabelProgress& progress) {
  const auto group = comm::make_solo_group();
  const std::vector<ModeletSpec> partition = partition_model(network.experiment(), network.shape());
  const Sharding sharding(partition, std::vector<uint32_t>(partition.size()), 0, 1);
  Evaluator evaluator(network, sharding, *group);
  fit_classifiers(network, evaluator, samples, shard::all_rows(samples.rows()), {}, [&](size_t done, size_t all) {
    if (progress) progress("fits their classifiers", static_cast<double>(done) / static_cast<double>(all));
  });
}

void take_labels(shard::Network& network, std::span<shard::Network* const> parts) {
  const auto find = [&](uint32_t label) -> shard::NeuronAt {
    for (shard::Network* part : parts) {
      const uint32_t neuron = label < part->spread().labels() ? part->spread().neuron(label) : shard::LabelSpread::kNoNeuron;
      if (neuron == shard::LabelSpread::kNoNeuron) continue;
      for (shard::Modelet* modelet : part->output().modelets())
        if (modelet->spec().begin <= neuron && neuron < modelet->spec().end) return {modelet, neuron - modelet->spec().begin};
    }
    MODELET_CHECK(false, "each label is in one of the parts");
  };
  for (shard::Modelet* modelet : network.output().modelets()) {
    std::vector<shard::NeuronAt> neurons;
    for (size_t row = 0; row < modelet->spec().neurons(); ++row)
      neurons.push_back(find(network.spread().label(static_cast<uint32_t>(modelet->spec().begin + row))));
    shard::take_neurons(*modelet, neurons);
  }
}

void join_labels(shard::Network& whole, std::span<shard::Network* const> parts, const shard::Checkpoint& checkpoint) {
  for (const auto& modelet : whole.modelets())
    if (modelet->spec().kind != LayerKind::kOutput) shard::restore_modelet(*modelet, checkpoint);
  take_labels(whole, parts);
}

}  // namespace modelet::agent
