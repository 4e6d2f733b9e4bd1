#include "shard/layers/scoring/terms.h"

#include <algorithm>
#include <array>
#include <functional>
#include <type_traits>

#include "base/error.h"
#include "shard/data/pairs/exclusion.h"
#include "shard/kernels/gemm.h"
#include "shard/kernels/row_dots.h"

namespace modelet::shard {
namespace {

class NetworkTerm final : public Term {
 public:
  explicit NetworkTerm(OutputModelets modelets) : modelets_(modelets.begin(), modelets.end()) {}

  std::string_view name() const override { return "network"; }

  void add_biases(const LabelRows& labels, float* biases) const override {
    const Parameters& parameters = modelets_[labels.modelet]->parameters();
    for (size_t i = 0; i < labels.rows.size(); ++i) biases[i] += parameters.bias(labels.rows[i]);
  }

  float logit(const Query& query, LabelRow label) const override {
    const Parameters& parameters = modelets_[label.modelet]->parameters();
    return parameters.logit(label.row, query.hidden) - parameters.bias(label.row);
  }

  void add_logits(const Query& query, float* logits) const override {
    std::array<float, kScoredTogether> products;
    for (const Modelet* modelet : modelets_) {
      const Parameters& p = modelet->parameters();
      for (size_t first = 0; first < p.rows(); first += products.size()) {
        const size_t count = std::min(products.size(), p.rows() - first);
        p.with_weights([&](const auto* weights, size_t stride) {
          kernels::row_dots(weights + first * stride, stride, count, query.hidden, p.cols(), products.data());
        });
        float* const out = logits + modelet->spec().begin + first;
        std::transform(products.begin(), products.begin() + count, out, out, std::plus<>());
      }
    }
  }

  void add_logits(const QueryBatch& batch, const LabelRows& labels, TermScratch& scratch,
                  float* logits) const override {
    const Parameters& parameters = modelets_[labels.modelet]->parameters();
    const size_t width = parameters.cols(), columns = batch.columns();
    if (batch.hidden_pairs() != nullptr) {
      parameters.with_weights([&](const auto* all, size_t stride) {
        if constexpr (std::is_same_v<decltype(all), const Bf16*>) {
          Bf16* const copies = scratch.bf16_rows.reserve(labels.rows.size() * width).data();
          const auto [weights, apart] = gather_rows(all, stride, width, labels.rows, copies);
          kernels::gemm({.m = labels.rows.size(),
                         .n = columns,
                         .k = width / 2,
                         .a = weights,
                         .a_row = apart / 2,
                         .a_col = 1,
                         .b = batch.hidden_pairs(),
                         .b_row = columns,
                         .c = logits,
                         .c_row = columns,
                         .accumulate = true});
        }
      });
      return;
    }
    const ConstMatrix weights =
        parameters.weights().block(labels.rows, scratch.rows.reserve(labels.rows.size() * width).data());
    kernels::gemm({.m = labels.rows.size(),
                   .n = columns,
                   .k = width,
                   .a = weights.data,
                   .a_row = weights.stride,
                   .a_col = 1,
                   .b = batch.hidden_transposed().data,
                   .b_row = batch.hidden_transposed().stride,
                   .c = logits,
                   .c_row = columns,
                   .accumulate = true});
  }

 private:
  std::vector<Modelet*> modelets_;
};

size_t features_of(OutputModelets modelets) {
  return modelets.empty() ? 0 : modelets[0]->direct()->pairs.feature_count();
}

class CentroidTerm final : public Term {
 public:
  CentroidTerm(OutputModelets modelets, float rare_share)
      : modelets_(modelets.begin(), modelets.end()), rare_share_(rare_share) {}

  std::string_view name() const override { return "centroids"; }
  TermNeeds needs() const override { return {features_of(modelets_)}; }

  void add_pair_values(LabelRow label, std::span<float> values) const override {
    const Direct& direct = *modelets_[label.modelet]->direct();
    const float norm = direct.pairs.norm(label.row);
    if (norm == 0) return;
    const size_t of_label = frequency_class(direct.pairs.positives(label.row));
    const float scale = direct.scale(of_label) * (of_label < kRareClasses ? rare_share_ : 1) / norm;
    const float* const sums = direct.pairs.sums(label.row).values;
    for (size_t i = 0; i < values.size(); ++i) values[i] += scale * sums[i];
  }

 private:
  static constexpr size_t kRareClasses = 3;  // the first ones

  std::vector<Modelet*> modelets_;
  float rare_share_;
};

class ClassifierTerm final : public Term {
 public:
  explicit ClassifierTerm(OutputModelets modelets) : modelets_(modelets.begin(), modelets.end()) {}

  std::string_view name() const override { return "classifiers"; }
  TermNeeds needs() const override { return {features_of(modelets_)}; }

  void add_offsets(const LabelRows& labels, float* offsets) const override {
    const Classifiers& classifiers = *modelets_[labels.modelet]->direct()->classifiers;
    for (size_t i = 0; i < labels.rows.size(); ++i) offsets[i] += classifiers.biases[labels.rows[i]];
  }

  void add_pair_values(LabelRow label, std::span<float> values) const override {
    const Direct& direct = *modelets_[label.modelet]->direct();
    const auto weights = direct.pairs.of_row(std::span(direct.classifiers->weights), label.row);
    std::ranges::transform(weights, values, values.begin(), std::plus<>());
  }

 private:
  std::vector<Modelet*> modelets_;
};

class ExclusionTerm final : public Term {
 public:
  ExclusionTerm(OutputModelets modelets, const LabelSpread& spread)
      : modelets_(modelets.begin(), modelets.end()), spread_(spread) {}

  std::string_view name() const override { return "exclusion"; }
  TermNeeds needs() const override { return {features_of(modelets_), true}; }

  float logit(const Query& query, LabelRow label) const override {
    const std::span<const uint32_t> features = query.sample.features;
    const uint32_t own = this->label(label.modelet, label.row);
    const auto found = std::ranges::lower_bound(features, own);
    return found != features.end() && *found == own
               ? kOwnWeight * query.sample.values[static_cast<size_t>(found - features.begin())]
               : 0;
  }

  void add_logits(const Query& query, float* logits) const override {
    const auto& [features, values, labels] = query.sample;
    for (size_t i = 0; i < features.size() && features[i] < spread_.labels(); ++i)
      logits[spread_.neuron(features[i])] += kOwnWeight * values[i];
  }

  void add_logits(const QueryBatch& batch, const LabelRows& labels, TermScratch&,
                  float* logits) const override {
    for (size_t i = 0; i < labels.rows.size(); ++i)
      for_each_excluded(batch.features(), label(labels.modelet, labels.rows[i]),
                        [&](uint32_t sample, float added) { logits[i * batch.columns() + sample] += added; });
  }

 private:
  uint32_t label(size_t modelet, size_t row) const {
    return spread_.label(static_cast<uint32_t>(modelets_[modelet]->spec().begin + row));
  }

  std::vector<Modelet*> modelets_;
  const LabelSpread& spread_;
};

}  // namespace

void QueryBatch::assign(const Batch* batch, ConstMatrix hidden_transposed, TermNeeds needs, bool as_pairs) {
  hidden_transposed_ = hidden_transposed;
  as_pairs_ = as_pairs;
  has_features_ = needs.features > 0;
  if (has_features_) {
    MODELET_CHECK(batch != nullptr, "terms of these scores read the samples");
    features_.assign(*batch, needs.features, 0, needs.by_feature);
  }
  if (!as_pairs) return;
  const size_t columns = hidden_transposed.cols;
  Bf16* const pairs = hidden_pairs_.reserve(hidden_transposed.rows * columns).data();
  for (size_t d = 0; d < hidden_transposed.rows; d += 2)
    kernels::pack_pairs(hidden_transposed.row(d), hidden_transposed.row(d + 1), pairs + d * columns, columns);
}

std::unique_ptr<Term> make_network_term(OutputModelets modelets) {
  return std::make_unique<NetworkTerm>(modelets);
}
std::unique_ptr<Term> make_centroid_term(OutputModelets modelets, float rare_share) {
  return std::make_unique<CentroidTerm>(modelets, rare_share);
}
std::unique_ptr<Term> make_classifier_term(OutputModelets modelets) {
  return std::make_unique<ClassifierTerm>(modelets);
}
std::unique_ptr<Term> make_exclusion_term(OutputModelets modelets, const LabelSpread& spread) {
  return std::make_unique<ExclusionTerm>(modelets, spread);
}

}  // namespace modelet::shard
