// Metrics: how good the best labels of test samples are, as named figures.
//
//   p_at_K       precision: share of the K best labels that are right
//   ndcg_at_K    normalised discounted cumulative gain: hits weigh 1 / log(1 + rank), over the best possible
//   recall_at_K  share of the sample's labels that are among the K best
//   mrr_at_K     mean reciprocal rank: 1 / the rank of the best label that is right; 0 if none of the K best is
//   psp_at_K     propensity-scored precision (Jain, Prabhu, Varma, KDD 2016): hits weigh the more, the rarer
//                the label is in train; over the best possible
//   auc          area under the ROC curve over all (sample, label) pairs; ties count half
//   log_loss     mean binary cross-entropy of all (sample, label) pairs, in nats
//
// Definitions are those of the Extreme Classification Repository: figures are means over all samples, and a
// sample without labels counts as 0. psp is a ratio of sums over samples. Plain values; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/batch/batch.h"
#include "shard/inference/evaluation.h"

namespace modelet::shard {

// A figure and its name in events.
struct Figure {
  std::string name;
  double value = 0;
};

// 1 / propensity of each label: 1 + C (count + B)^-A with C = (ln(rows) - 1) (B + 1)^A (Jain et al., section
// 4). counts [labels]: train samples that have the label, out of `rows`.
std::vector<float> inverse_propensities(std::span<const uint32_t> counts, uint64_t rows,
                                        const Experiment::Metrics& options);

// Whether auc and log_loss exist: they need the scores of all labels, comparable between samples, so a
// sigmoid model with few labels.
inline constexpr size_t kMostLabelsForAuc = 64;
bool has_auc(Loss loss, size_t labels);

// Computed from the scores (log-odds) of correct and of wrong (sample, label) pairs: the share of pairs of
// both kinds in the right order (NaN if a kind is missing), and the mean binary cross-entropy.
double area_under_curve(std::vector<float> positives, std::vector<float> negatives);
double log_loss(std::span<const float> positives, std::span<const float> negatives);

class Metrics {
 public:
  // ks: not empty. inverse_propensities [labels]; empty: no psp. `all_labels`: the number of labels if auc
  // and log_loss are wanted, else 0.
  Metrics(std::vector<size_t> ks, std::vector<float> inverse_propensities, size_t all_labels);

  // Number of labels of each sample that add() needs.
  size_t depth() const { return depth_; }
  void add(const Batch& batch, const TopK& best);

  // All metrics. A metric that is not defined for what was added is 0; auc and log_loss are NaN then.
  std::vector<Figure> figures() const;

 private:
  void add_ranking(std::span<const uint32_t> truth, std::span<const uint32_t> best);
  void add_scores(std::span<const uint32_t> truth, std::span<const uint32_t> labels,
                  std::span<const float> scores);

  std::vector<size_t> ks_;
  std::vector<float> inverse_propensities_;
  size_t all_labels_, depth_;
  std::vector<double> discounted_;  // [largest k + 1] sum of 1 / log(1 + rank) up to a rank
  uint64_t samples_ = 0;
  struct Sums {
    uint64_t hits = 0;
    double ndcg = 0, recall = 0, reciprocal_rank = 0, psp = 0, best_psp = 0;
  };
  std::vector<Sums> sums_;           // one for each k
  std::vector<float> best_weights_;  // scratch: inverse propensities of a sample's labels
  std::vector<float> positives_,
      negatives_;           // scores of the pairs that are labels, and of those that are not
  bool all_scored_ = true;  // no pair without a score so far
};

}  // namespace modelet::shard
