// The terms of which scores consist.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "shard/data/pairs/own_items.h"
#include "shard/kernels/gemm.h"
#include "shard/kernels/row_dots.h"
#include "shard/layers/scoring/scoring.h"
#include "shard/layers/scoring/term.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {
namespace {

// A term refers to the output modelets of the layer.
class ModeletTerm : public Term {
 public:
  explicit ModeletTerm(std::span<Modelet* const> modelets) : modelets_(modelets.begin(), modelets.end()) {}

 protected:
  std::span<Modelet* const> modelets() const { return modelets_; }
  const Parameters& parameters(size_t modelet) const { return modelets_[modelet]->parameters(); }
  const Direct& direct(size_t modelet) const { return *modelets_[modelet]->direct(); }
  // Of the data.
  size_t features() const { return modelets_.empty() ? 0 : direct(0).pairs.feature_count(); }

 private:
  std::vector<Modelet*> modelets_;
};

// The label's neuron: weights * activations, and its bias.
class NetworkTerm final : public ModeletTerm {
 public:
  using ModeletTerm::ModeletTerm;

  std::string_view name() const override { return "network"; }

  void add_biases(const LabelRows& labels, float* biases) const override {
    const Parameters& p = parameters(labels.modelet);
    for (size_t i = 0; i < labels.rows.size(); ++i) biases[i] += p.bias(labels.rows[i]);
  }

  float logit(const Query& query, LabelRow label) const override {
    const Parameters& p = parameters(label.modelet);
    return p.logit(label.row, query.hidden) - p.bias(label.row);
  }

  void add_logits(const Query& query, float* logits) const override {
    std::array<float, 1024> products;
    for (const Modelet* modelet : modelets()) {
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
    const Parameters& p = parameters(labels.modelet);
    const size_t width = p.cols(), columns = batch.columns();
    if (batch.hidden_pairs() != nullptr) {
      p.with_weights([&](const auto* all, size_t stride) {
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
        p.weights().block(labels.rows, scratch.rows.reserve(labels.rows.size() * width).data());
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
};

// scale[class of the label] * cos(x, centroid of the label).
class CentroidTerm final : public ModeletTerm {
 public:
  // `rare_share`: factor of the scales of rare labels.
  CentroidTerm(std::span<Modelet* const> modelets, float rare_share)
      : ModeletTerm(modelets), rare_share_(rare_share) {}

  std::string_view name() const override { return "centroids"; }
  TermNeeds needs() const override { return {features()}; }

  void add_pair_values(LabelRow label, std::span<float> values) const override {
    const Pairs& pairs = direct(label.modelet).pairs;
    const float norm = pairs.norm(label.row);
    if (norm == 0) return;
    const size_t of_label = frequency_class(pairs.positives(label.row));
    const float scale =
        direct(label.modelet).scale(of_label) * (of_label < kRareClasses ? rare_share_ : 1) / norm;
    const float* const sums = pairs.sums(label.row).values;
    for (size_t i = 0; i < values.size(); ++i) values[i] += scale * sums[i];
  }

 private:
  static constexpr size_t kRareClasses = 3;  // the first ones

  float rare_share_;
};

// The margins of linear classifiers (classifiers.h), which have their weight in the score already.
class ClassifierTerm final : public ModeletTerm {
 public:
  using ModeletTerm::ModeletTerm;

  std::string_view name() const override { return "classifiers"; }
  TermNeeds needs() const override { return {features()}; }

  void add_offsets(const LabelRows& labels, float* offsets) const override {
    const std::vector<float>& biases = direct(labels.modelet).classifiers->biases;
    for (size_t i = 0; i < labels.rows.size(); ++i) offsets[i] += biases[labels.rows[i]];
  }

  void add_pair_values(LabelRow label, std::span<float> values) const override {
    const Direct& of_modelet = direct(label.modelet);
    const auto weights = of_modelet.pairs.of_row(std::span(of_modelet.classifiers->weights), label.row);
    std::ranges::transform(weights, values, values.begin(), std::plus<>());
  }
};

// Labels that are among the features of the sample get no chance, or a better one (shard/data/pairs/own_items.h).
class OwnItemsTerm final : public ModeletTerm {
 public:
  OwnItemsTerm(std::span<Modelet* const> modelets, const LabelSpread& spread, float weight)
      : ModeletTerm(modelets), spread_(spread), weight_(weight) {}

  std::string_view name() const override { return "own items"; }
  TermNeeds needs() const override { return {features(), true}; }

  float logit(const Query& query, LabelRow label) const override {
    const std::span<const uint32_t> features = query.sample.features;
    const uint32_t own = this->label(label.modelet, label.row);
    const auto found = std::ranges::lower_bound(features, own);
    return found != features.end() && *found == own
               ? weight_ * query.sample.values[static_cast<size_t>(found - features.begin())]
               : 0;
  }

  void add_logits(const Query& query, float* logits) const override {
    const auto& [features, values, labels] = query.sample;
    for (size_t i = 0; i < features.size() && features[i] < spread_.labels(); ++i)
      if (const uint32_t neuron = spread_.neuron(features[i]); neuron != LabelSpread::kNoNeuron)
        logits[neuron] += weight_ * values[i];
  }

  void add_logits(const QueryBatch& batch, const LabelRows& labels, TermScratch&,
                  float* logits) const override {
    for (size_t i = 0; i < labels.rows.size(); ++i)
      for_each_owner(batch.features(), label(labels.modelet, labels.rows[i]), [&](uint32_t sample, float value) {
        logits[i * batch.columns() + sample] += weight_ * value;
      });
  }

 private:
  uint32_t label(size_t modelet, size_t row) const {
    return spread_.label(static_cast<uint32_t>(modelets()[modelet]->spec().begin + row));
  }

  const LabelSpread& spread_;
  const float weight_;
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
  kernels::pack_pairs(hidden_transposed, pairs, columns);
}

std::vector<std::unique_ptr<Term>> make_terms(std::span<Modelet* const> modelets, const LabelSpread& spread,
                                              const ScoringSettings& settings) {
  std::vector<std::unique_ptr<Term>> terms;
  terms.push_back(std::make_unique<NetworkTerm>(modelets));
  if (settings.centroids) terms.push_back(std::make_unique<CentroidTerm>(modelets, settings.centroid_share));
  if (settings.classifiers > 0) terms.push_back(std::make_unique<ClassifierTerm>(modelets));
  if (settings.own_weight != 0)
    terms.push_back(std::make_unique<OwnItemsTerm>(modelets, spread, settings.own_weight));
  return terms;
}

}  // namespace modelet::shard
