#include "shard/layers/scoring/scoring.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "base/array/padding.h"
#include "base/error.h"
#include "shard/data/pairs/own_items.h"

namespace modelet::shard {

ScoringSettings scoring_settings(const Experiment& experiment) {
  const Experiment::Model& model = experiment.model;
  return {.centroids = model.centroids,
          .centroid_share = model.centroid_share,
          .classifiers = has_classifiers(model) ? model.classifiers : 0,
          .own_weight = shard::own_weight(model),
          .rare_trust = model.rare_trust,
          .prior = experiment.sampling.prior,
          .sampling = experiment.sampling,
          .train = experiment.train};
}

std::vector<float> log_activity(const Modelet& modelet, const Experiment::Sampling& sampling,
                                const Experiment::Train& train, const DataShape& shape) {
  const std::vector<uint32_t>& counts = modelet.label_counts();
  std::vector<float> logs(counts.size(), 0.0f);
  if (sampling.mode == SamplingMode::kFull) return logs;  // training has no such bias

  // A sample is among those that share a set with this chance; a label is not if none of its samples is.
  const bool alone = sampling.mode == SamplingMode::kLshPerSample;
  const auto rows = static_cast<double>(std::max<uint64_t>(shape.train_rows, 1));
  const double in_batch = std::min(1.0, samples_of_set(sampling, train.batch) / rows);
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

Scoring::Scoring(std::vector<Modelet*> modelets, const LabelSpread& spread, const ScoringSettings& settings)
    : modelets_(std::move(modelets)),
      spread_(spread),
      settings_(settings),
      terms_(make_terms(modelets_, spread, settings)),
      factors_(modelets_.size()),
      shifts_(modelets_.size()) {}

void Scoring::set_counts(const DataShape& shape) {
  const float share = settings_.prior, of_one = settings_.rare_trust;
  if (share == 0 && of_one == 1) return;
  for (size_t m = 0; m < modelets_.size(); ++m) {
    const std::vector<uint32_t>& counts = modelets_[m]->label_counts();
    if (counts.empty())
      throw FormatError("the model's checkpoint has no label counts, which " +
                        std::string(share != 0 ? "sampling.prior" : "model.rare_trust") +
                        " needs: it is damaged");
    shifts_[m] = log_activity(*modelets_[m], settings_.sampling, settings_.train, shape);
    factors_[m].clear();
    for (size_t i = 0; i < counts.size(); ++i) {
      const float factor = trust(counts[i], of_one);
      factors_[m].push_back(factor);
      shifts_[m][i] = factor * share * shifts_[m][i] + (1 - factor) * kDoubtful;
    }
  }
}

void Scoring::remove(std::span<const uint32_t> labels) {
  for (const uint32_t label : labels) {
    const uint32_t neuron = spread_.neuron(label);
    for (size_t m = 0; m < modelets_.size(); ++m) {
      const ModeletSpec& spec = modelets_[m]->spec();
      if (neuron < spec.begin || neuron >= spec.end) continue;
      shifts_[m].resize(spec.neurons());
      shifts_[m][neuron - spec.begin] = kRemoved;
    }
  }
}

TermNeeds Scoring::needs() const {
  TermNeeds needs;
  for (const auto& term : terms_) {
    needs.features = std::max(needs.features, term->needs().features);
    needs.by_feature = needs.by_feature || term->needs().by_feature;
  }
  return needs;
}

void Scoring::constants(const LabelRows& labels, float* out) const {
  std::fill_n(out, labels.rows.size(), 0.0f);
  for (const auto& term : terms_) term->add_biases(labels, out);
  for (size_t i = 0; i < labels.rows.size(); ++i) {
    const LabelRow label{labels.modelet, labels.rows[i]};
    out[i] = factor(label) * out[i] + shift(label);
  }
  for (const auto& term : terms_) term->add_offsets(labels, out);
}

float Scoring::constant(LabelRow label) const {
  const auto row = static_cast<uint32_t>(label.row);
  float out = 0;
  constants({label.modelet, std::span(&row, 1)}, &out);
  return out;
}

const Pairs* Scoring::pairs(size_t modelet) const {
  const Direct* const direct = std::as_const(*modelets_[modelet]).direct();
  return direct == nullptr ? nullptr : &direct->pairs;
}

void Scoring::pair_values(LabelRow label, std::span<float> out) const {
  std::ranges::fill(out, 0.0f);
  for (const auto& term : terms_) term->add_pair_values(label, out);
}

void Scoring::add_logits(const QueryBatch& batch, const LabelRows& labels, TermScratch& scratch,
                         float* logits) const {
  terms_.front()->add_logits(batch, labels, scratch, logits);
  if (batch.has_features() && pairs(labels.modelet) != nullptr)
    add_pairs(batch.features(), labels, scratch, logits);
  for (size_t t = 1; t < terms_.size(); ++t) terms_[t]->add_logits(batch, labels, scratch, logits);
}

void Scoring::add_pairs(const BatchFeatures& batch, const LabelRows& labels, TermScratch& scratch,
                        float* logits) const {
  const Pairs& pairs = *this->pairs(labels.modelet);
  const size_t columns = padded(batch.batch().size());
  std::array<LabelPairs, PairLanes::kLanes> lanes;
  for (size_t first = 0; first < labels.rows.size(); first += lanes.size()) {
    const size_t count = std::min(lanes.size(), labels.rows.size() - first);
    const std::span<const uint32_t> rows = labels.rows.subspan(first, count);
    std::vector<float>& values = scratch.pair_values;
    values.clear();
    for (const uint32_t row : rows) values.resize(values.size() + pairs.features(row).size());
    float* next = values.data();
    for (size_t i = 0; i < count; ++i) {
      lanes[i] = {pairs.features(rows[i]), next};
      pair_values({labels.modelet, rows[i]}, {next, lanes[i].features.size()});
      next += lanes[i].features.size();
    }
    scratch.lanes.multiply(batch, std::span(lanes).first(count));
    for (size_t i = 0; i < count; ++i)
      scratch.lanes.add_sums(i, 1, batch.inverse_lengths(), logits + (first + i) * columns);
    scratch.lanes.clear();
  }
}

std::vector<Scoring::Share> Scoring::explain(const Query& query, LabelRow label) const {
  const auto& [features, values, labels] = query.sample;
  double squares = 0;
  for (const float value : values) squares += double{value} * value;
  const float inverse = inverse_length(squares);
  const auto row = static_cast<uint32_t>(label.row);
  const LabelRows alone{label.modelet, std::span(&row, 1)};
  const Pairs* const pairs = this->pairs(label.modelet);
  const std::span<const uint32_t> of_label =
      pairs == nullptr ? std::span<const uint32_t>() : pairs->features(label.row);
  std::vector<float> pair_values;
  std::vector<Share> shares;
  for (const auto& term : terms_) {
    float logit = term->logit(query, label), offset = 0;
    term->add_biases(alone, &logit);
    term->add_offsets(alone, &offset);
    pair_values.assign(of_label.size(), 0.0f);
    term->add_pair_values(label, pair_values);
    for (size_t i = 0; i < features.size(); ++i)
      if (const auto found = std::ranges::lower_bound(of_label, features[i]);
          found != of_label.end() && *found == features[i])
        logit += values[i] * inverse * pair_values[static_cast<size_t>(found - of_label.begin())];
    shares.push_back({term->name(), factor(label) * logit + offset});
  }
  shares.push_back({"prior and trust", shift(label)});
  return shares;
}

}  // namespace modelet::shard
