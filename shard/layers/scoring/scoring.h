// Scoring: how labels are scored, for the output modelets of a layer that are held here.
//
//     logit = sum of the terms of the label (term.h)
//     score = kDoubtful + trust * (logit + prior - kDoubtful) + offsets of the terms
//
//     prior   The neuron of a rare label takes part in few steps, and in these it is a label far more often
//             than over all samples. So sampling negatives raises its logits by minus the logarithm of its
//             chance to be in the active set. sampling.prior takes a share of that back. (Menon et al.,
//             "Long-tail learning via logit adjustment", ICLR 2021, shift logits by priors in a similar way.)
//     trust   What was learned from few samples is too sure of itself, because hidden layers know these
//             samples by heart. So logits are pulled towards kDoubtful. This is a temperature, as in Guo et
//             al., "On calibration of modern neural networks" (ICML 2017), that depends on how often a label
//             was seen (model.rare_trust).
//
// Training uses only logits (shard/layers/output/), so nothing here changes training.
//
// Refers to the modelets. set_counts() and add() come first; then any thread may call the const functions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/store/label_spread.h"
#include "shard/layers/scoring/term.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {

// All that an experiment says about scores.
struct ScoringSettings {
  bool centroids = false;
  float centroid_share = 1;  // factor of the centroids' scales for rare labels
  float classifiers = 0;     // weight of the margins of linear classifiers; 0: there are none
  float own_weight = 0;      // shard/data/pairs/own_items.h
  float rare_trust = 1;  // of a label with one training sample
  float prior = 0;       // share of the logarithm of the chance to be active
  // What that chance follows from.
  Experiment::Sampling sampling;
  Experiment::Train train;
};
ScoringSettings scoring_settings(const Experiment& experiment);

// The terms of an experiment, the network first.
std::vector<std::unique_ptr<Term>> make_terms(std::span<Modelet* const> modelets, const LabelSpread& spread,
                                              const ScoringSettings& settings);

// [neurons] logarithm of a neuron's chance to be in the active set of a training step, because the batch has
// its label or because it is drawn. Computed from the modelet's label counts, as if the batch were drawn
// without repetition from all training samples. Neurons that a step retrieves are not counted.
std::vector<float> log_activity(const Modelet& modelet, const Experiment::Sampling& sampling,
                                const Experiment::Train& train, const DataShape& shape);

// The logit of 8 %: about that of the labels for which it is hard to decide whether they are shown.
inline constexpr float kDoubtful = -2.5f;
inline constexpr float kRemoved = -1e30f;  // what else a score consists of does not change it
inline constexpr uint32_t kOftenSeen = 100;  // a label with this many samples is trusted fully

// The share of their distance from kDoubtful that a label's logits keep. `of_one`: that of a label with one
// training sample.
float trust(uint32_t samples, float of_one);

class Scoring {
 public:
  // Until set_counts(), every label is trusted fully and has no prior.
  Scoring(std::vector<Modelet*> modelets, const LabelSpread& spread, const ScoringSettings& settings);

  // Computes trust and priors from the label counts that the modelets have now (FormatError if they are missing).
  void set_counts(const DataShape& shape);
  // These labels get about the score kRemoved: no other label has one that is half as low. Call it after set_counts().
  void remove(std::span<const uint32_t> labels);
  // A further term of the layer's labels.
  void add(std::unique_ptr<Term> term) { terms_.push_back(std::move(term)); }

  const std::vector<Modelet*>& modelets() const { return modelets_; }
  const LabelSpread& spread() const { return spread_; }
  const ScoringSettings& settings() const { return settings_; }
  std::span<const std::unique_ptr<Term>> terms() const { return terms_; }  // the network is the first
  TermNeeds needs() const;

  // score = factor * logit without biases + constant
  float factor(LabelRow label) const {
    return factors_[label.modelet].empty() ? 1 : factors_[label.modelet][label.row];
  }
  void constants(const LabelRows& labels, float* out) const;  // out [labels.rows.size()]
  float constant(LabelRow label) const;

  // out [pairs of the label] = the factors of x_f / |x| in its logit: the sums of all terms.
  void pair_values(LabelRow label, std::span<float> out) const;

  // logits [labels.rows.size(), batch.columns()] += all that terms say about the batch. At most kScoredTogether
  // labels.
  void add_logits(const QueryBatch& batch, const LabelRows& labels, TermScratch& scratch,
                  float* logits) const;

  // What a score consists of. The values add up to it.
  struct Share {
    std::string_view name;  // of a term, or "prior and trust"
    float value;
  };
  std::vector<Share> explain(const Query& query, LabelRow label) const;

 private:
  void add_pairs(const BatchFeatures& batch, const LabelRows& labels, TermScratch& scratch,
                 float* logits) const;
  const Pairs* pairs(size_t modelet) const;
  float shift(LabelRow label) const {
    return shifts_[label.modelet].empty() ? 0 : shifts_[label.modelet][label.row];
  }

  std::vector<Modelet*> modelets_;
  const LabelSpread& spread_;
  ScoringSettings settings_;
  std::vector<std::unique_ptr<Term>> terms_;
  std::vector<std::vector<float>> factors_, shifts_;  // [modelets][neurons], or empty: 1 and 0
};

}  // namespace modelet::shard
