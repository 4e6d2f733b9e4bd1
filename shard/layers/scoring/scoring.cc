#include "shard/layers/scoring/scoring.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"

namespace modelet::shard {

std::vector<float> log_activity(const Modelet& modelet, const Experiment::Sampling& sampling,
                                const Experiment::Train& train, const DataShape& shape) {
  const std::vector<uint32_t>& counts = modelet.label_counts();
  std::vector<float> logs(counts.size(), 0.0f);
  if (sampling.mode == SamplingMode::kFull) return logs;  // training has no such bias

  // A sample is in the batch with this chance; a label is not if none of its samples is. With lsh_per_sample, each
  // sample draws labels of its own, so it counts as a batch.
  const bool alone = sampling.mode == SamplingMode::kLshPerSample;
  const auto rows = static_cast<double>(std::max<uint64_t>(shape.train_rows, 1));
  const double in_batch = std::min(1.0, (alone ? 1 : train.batch) / rows);
  std::vector<double> chances;
  double labels = 0;  // of the modelet in a batch, on average
  for (const uint32_t count : counts) {
    chances.push_back(alone          ? std::min(1.0, count / rows)
                      : in_batch < 1 ? -std::expm1(count * std::log1p(-in_batch))
                      : count > 0    ? 1.0
                                     : 0.0);
    labels += chances.back();
  }
  const auto neurons = static_cast<double>(counts.size());
  const double wanted = sampling.sparsity > 0
                            ? std::max(0.0, double{sampling.sparsity} * neurons - labels)
                            : sampling.uniform * neurons / static_cast<double>(shape.labels);
  const double drawn = neurons > labels ? std::min(1.0, wanted / (neurons - labels)) : 0.0;
  // Nothing is known about a neuron that no step ever sees: it counts as if one step in all of training had
  // seen it.
  const double least = in_batch / std::max(1u, train.epochs);
  for (size_t i = 0; i < logs.size(); ++i)
    logs[i] = static_cast<float>(std::log(std::max(least, 1 - (1 - chances[i]) * (1 - drawn))));
  return logs;
}

float trust(uint32_t samples, float of_one) {
  const float known = std::log(static_cast<float>(std::max(1u, samples))) / std::log(float{kOftenSeen});
  return of_one + (1 - of_one) * std::min(1.0f, known);
}

Scoring make_scoring(const Modelet& modelet, const Experiment& experiment, const DataShape& shape) {
  const float share = experiment.sampling.prior, of_one = experiment.model.rare_trust;
  Scoring scoring;
  if (share == 0 && of_one == 1) return scoring;
  const std::vector<uint32_t>& counts = modelet.label_counts();
  if (counts.empty())
    throw FormatError("the model's checkpoint has no label counts, which " +
                      std::string(share != 0 ? "sampling.prior" : "model.rare_trust") +
                      " needs: it is damaged");
  scoring.shifts = log_activity(modelet, experiment.sampling, experiment.train, shape);
  for (size_t i = 0; i < counts.size(); ++i) {
    const float factor = trust(counts[i], of_one);
    scoring.factors.push_back(factor);
    scoring.shifts[i] = factor * share * scoring.shifts[i] + (1 - factor) * kDoubtful;
  }
  return scoring;
}

}  // namespace modelet::shard
