#include "node_agent/train/recipe/cost.h"

#include <algorithm>

#include "base/experiment/memory.h"
#include "base/experiment/partition.h"
#include "base/experiment/towers.h"
#include "node_agent/train/evaluation/classifiers.h"

namespace modelet::agent {

Cost cost_of(const Experiment& experiment, const DataFacts& facts) {
  const Experiment::Model& model = experiment.model;
  const double towers = model.towers, tasks = tower_tasks(model);
  const double labels = static_cast<double>(facts.labels) / towers,
               width = static_cast<double>(model.hidden.back());
  // Only about half as many, because samples share labels.
  const double of_batch =
      0.5 * samples_of_set(experiment.sampling, experiment.train.batch) * facts.labels_per_row / towers;
  double drawn = static_cast<double>(experiment.sampling.uniform);
  if (experiment.sampling.sparsity > 0) drawn = static_cast<double>(experiment.sampling.sparsity) * labels;
  const double active =
      experiment.sampling.mode == SamplingMode::kFull ? labels : std::min(labels, drawn + of_batch);
  double hidden = facts.features_per_row * static_cast<double>(experiment.model.hidden.front());
  for (size_t layer = 1; layer < experiment.model.hidden.size(); ++layer)
    hidden += static_cast<double>(experiment.model.hidden[layer - 1]) * experiment.model.hidden[layer];
  constexpr double kProductsOfAStep = 3;  // logits, hidden gradient, weight gradient
  const double unseen = static_cast<double>(facts.unseen_labels) / towers;
  const double left_out = (1 - model.tower_samples) * std::max(0.0, 1 - facts.labels_per_row / towers);
  return {.train = tasks * (1 - left_out) * kProductsOfAStep * (hidden + active * width),
          .score = tasks * (hidden + labels * width),
          .propose = tasks * (1 - left_out) * (hidden + (labels - unseen) * width)};
}

double training_cost(const Experiment& experiment, const DataFacts& facts) {
  return static_cast<double>(experiment.train.epochs) * static_cast<double>(facts.rows) *
         cost_of(experiment, facts).train;
}

SampleSeconds seconds_between(const Measured& cheap, const Measured& dear) {
  if (cheap.cost >= dear.cost) return {.per_cost = dear.seconds / dear.cost};
  const double slope = std::max(0.0, (dear.seconds - cheap.seconds) / (dear.cost - cheap.cost));
  const double beside = cheap.seconds - slope * cheap.cost;
  if (beside < 0) return {.per_cost = dear.seconds / dear.cost};
  return {.beside = beside, .per_cost = slope};
}

double seconds_of(const Experiment& experiment, const DataFacts& facts, const Pace& pace,
                  uint64_t scored_rows) {
  const Cost cost = cost_of(experiment, facts);
  const double held_out = experiment.data.validation * static_cast<double>(facts.rows);
  const double rows = static_cast<double>(facts.rows) - held_out;
  const uint32_t epochs = experiment.train.epochs, every = experiment.train.evaluate_every;
  const uint32_t evaluations = every == 0 ? 1 : (epochs + every - 1) / every;
  // If samples are held out, the test data is scored once, at the end.
  const auto scored = static_cast<double>(scored_rows);
  double seconds =
      pace.start + epochs * rows * pace.train.at(cost.train) +
      (held_out > 0 ? evaluations * held_out + scored : evaluations * scored) * pace.score.at(cost.score);
  if (has_classifiers(experiment.model))
    seconds += evaluations * (static_cast<double>(classifier_rows(static_cast<size_t>(rows))) *
                                  pace.score.at(cost.propose) +
                              rows * pace.fit);
  return seconds;
}

uint64_t model_bytes(const Experiment& experiment, const DataFacts& facts) {
  uint64_t bytes = 0;
  DataShape shape = shape_of(facts);
  shape.labels = (facts.labels + experiment.model.towers - 1) / experiment.model.towers;
  for (const ModeletSpec& modelet : partition_model(experiment, shape))
    bytes += modelet_bytes(modelet, experiment) + pair_bytes(modelet, experiment, shape);
  return bytes;
}

}  // namespace modelet::agent
