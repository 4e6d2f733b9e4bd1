#include "shard/inference/metrics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"

namespace modelet::shard {
namespace {

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace

double area_under_curve(std::vector<float> positives, std::vector<float> negatives) {
  if (positives.empty() || negatives.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(positives.begin(), positives.end());
  std::sort(negatives.begin(), negatives.end());
  size_t below = 0, not_above = 0;  // negatives
  double right = 0;
  for (const float score : positives) {
    while (below < negatives.size() && negatives[below] < score) ++below;
    while (not_above < negatives.size() && negatives[not_above] <= score) ++not_above;
    right += 0.5 * static_cast<double>(below + not_above);
  }
  return right / (static_cast<double>(positives.size()) * static_cast<double>(negatives.size()));
}

double log_loss(std::span<const float> positives, std::span<const float> negatives) {
  double sum = 0;
  for (const float score : positives) sum += softplus(-double{score});
  for (const float score : negatives) sum += softplus(double{score});
  return sum / static_cast<double>(positives.size() + negatives.size());
}

std::vector<float> inverse_propensities(std::span<const uint32_t> counts, uint64_t rows,
                                        const Experiment::Metrics& options) {
  const double a = options.propensity_a, b = options.propensity_b;
  // Below e samples the formula would give rare labels less weight than frequent ones.
  const double c = std::max(0.0, std::log(static_cast<double>(rows)) - 1) * std::pow(b + 1, a);
  std::vector<float> inverse;
  for (const uint32_t count : counts) inverse.push_back(static_cast<float>(1 + c * std::pow(count + b, -a)));
  return inverse;
}

bool has_auc(Loss loss, size_t labels) { return loss == Loss::kSigmoid && labels <= kMostLabelsForAuc; }

Metrics::Metrics(std::vector<size_t> ks, std::vector<float> inverse_propensities, size_t all_labels)
    : ks_(std::move(ks)),
      inverse_propensities_(std::move(inverse_propensities)),
      all_labels_(all_labels),
      sums_(ks_.size()) {
  MODELET_CHECK(!ks_.empty());
  const size_t largest = *std::max_element(ks_.begin(), ks_.end());
  depth_ = std::max(largest, all_labels);
  discounted_.push_back(0);
  for (size_t rank = 1; rank <= largest; ++rank)
    discounted_.push_back(discounted_.back() + 1 / std::log(1.0 + static_cast<double>(rank)));
}

void Metrics::add(const Batch& batch, const TopK& best) {
  MODELET_CHECK(best.k() >= depth_);
  samples_ += batch.size();
  for (size_t s = 0; s < batch.size(); ++s) {
    const std::span truth(batch.labels.begin() + static_cast<std::ptrdiff_t>(batch.label_offsets[s]),
                          batch.labels.begin() + static_cast<std::ptrdiff_t>(batch.label_offsets[s + 1]));
    if (!truth.empty()) add_ranking(truth, best.labels(s));
    if (all_labels_ > 0) add_scores(truth, best.labels(s), best.scores(s));
  }
}

// truth: ascending, at least one.
void Metrics::add_ranking(std::span<const uint32_t> truth, std::span<const uint32_t> best) {
  const bool propensities = !inverse_propensities_.empty();
  if (propensities) {
    best_weights_.clear();
    for (const uint32_t label : truth) best_weights_.push_back(inverse_propensities_[label]);
    std::sort(best_weights_.begin(), best_weights_.end(), std::greater<>());
  }
  for (size_t q = 0; q < ks_.size(); ++q) {
    Sums& sums = sums_[q];
    uint64_t hits = 0;
    double gain = 0;
    for (size_t i = 0; i < ks_[q]; ++i) {
      if (!std::binary_search(truth.begin(), truth.end(), best[i])) continue;
      if (hits++ == 0) sums.reciprocal_rank += 1 / static_cast<double>(i + 1);
      gain += discounted_[i + 1] - discounted_[i];
      if (propensities) sums.psp += inverse_propensities_[best[i]];
    }
    const size_t possible = std::min(ks_[q], truth.size());
    sums.hits += hits;
    sums.ndcg += gain / discounted_[possible];
    sums.recall += static_cast<double>(hits) / static_cast<double>(truth.size());
    if (propensities)
      for (size_t i = 0; i < possible; ++i) sums.best_psp += best_weights_[i];
  }
}

void Metrics::add_scores(std::span<const uint32_t> truth, std::span<const uint32_t> labels,
                         std::span<const float> scores) {
  for (size_t i = 0; i < all_labels_; ++i) {
    if (labels[i] == TopK::kNoLabel) {  // sparse inference, or a score that is no number
      all_scored_ = false;
      return;
    }
    const bool positive = std::binary_search(truth.begin(), truth.end(), labels[i]);
    (positive ? positives_ : negatives_).push_back(scores[i]);
  }
}

std::vector<Figure> Metrics::figures() const {
  std::vector<Figure> figures;
  const double samples = static_cast<double>(std::max<uint64_t>(samples_, 1));
  const auto add = [&](const std::string& name, const auto& value) {
    for (size_t q = 0; q < ks_.size(); ++q)
      figures.push_back({name + "_at_" + std::to_string(ks_[q]), value(sums_[q], ks_[q])});
  };
  add("p", [&](const Sums& s, size_t k) {
    return static_cast<double>(s.hits) / (samples * static_cast<double>(k));
  });
  add("ndcg", [&](const Sums& s, size_t) { return s.ndcg / samples; });
  add("recall", [&](const Sums& s, size_t) { return s.recall / samples; });
  add("mrr", [&](const Sums& s, size_t) { return s.reciprocal_rank / samples; });
  if (!inverse_propensities_.empty())
    add("psp", [&](const Sums& s, size_t) { return s.best_psp > 0 ? s.psp / s.best_psp : 0; });
  if (all_labels_ > 0) {
    const double unknown = std::numeric_limits<double>::quiet_NaN();
    figures.push_back({"auc", all_scored_ ? area_under_curve(positives_, negatives_) : unknown});
    figures.push_back({"log_loss", all_scored_ ? log_loss(positives_, negatives_) : unknown});
  }
  return figures;
}

}  // namespace modelet::shard
