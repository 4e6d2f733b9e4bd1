// The terms of a score, each alone compared with its formula in double precision, and a term that only this test knows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/array/padding.h"
#include "base/experiment/partition.h"
#include "base/rng.h"
#include "shard/data/batch/split.h"
#include "shard/data/pairs/own_items.h"
#include "shard/inference/evaluation.h"
#include "shard/layers/network.h"
#include "shard/layers/scoring/feature_index.h"
#include "shard/layers/scoring/scoring.h"
#include "shard/synth/synth.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

class TermsTest : public ::testing::Test {
 protected:
  static constexpr size_t kWidth = 16, kLabels = 60;

  TermsTest() {
    write_synth({.rows_train = 200,
                 .rows_test = 30,
                 .features = 90,
                 .labels = kLabels,
                 .features_per_row = 9,
                 .labels_per_row = 2},
                folder_.path(), false);
    train_ = Dataset::open(folder_ / "train.mlt");
    test_ = Dataset::open(folder_ / "test.mlt");
    experiment_.model = {.hidden = {kWidth},
                         .loss = Loss::kSigmoid,
                         .centroids = true,
                         .centroid_share = 0.8f,
                         .rare_trust = 0.5f,
                         .classifiers = 2,
                         .exclude_own = true};
    experiment_.sampling.prior = 0.5f;
    experiment_.modelets = {.hidden_columns = 16, .output_modelets = 3};
    const DataShape shape = describe_shape(train_, test_);
    network_ =
        std::make_unique<Network>(experiment_, shape, partition_model(experiment_, shape), true, pool_);
    network_->initialise();
    network_->build_pairs(train_, all_rows(train_.rows()));
    network_->set_label_counts(count_labels(train_));
    Rng rng(5);
    for (Modelet* modelet : network_->output().modelets()) {
      for (size_t row = 0; row < modelet->spec().neurons(); ++row)
        modelet->parameters().bias(row) = rng.normal();
      for (size_t c = 0; c < kFrequencyClasses; ++c)
        modelet->direct()->scales.floats().row(0)[c] = 1.5f + static_cast<float>(c);
      for (float& weight : modelet->direct()->classifiers->weights) weight = rng.normal();
      for (float& bias : modelet->direct()->classifiers->biases) bias = rng.normal();
    }
    batch_.assign(test_, all_rows(test_.rows()), false);
    columns_ = padded(batch_.size());
    hidden_.resize(batch_.size() * kWidth);
    transposed_.resize(kWidth * columns_);
    for (size_t i = 0; i < hidden_.size(); ++i)
      transposed_[i % kWidth * columns_ + i / kWidth] = hidden_[i] = rng.normal();
  }

  Query query(size_t sample) const { return {test_.sample(sample), &hidden_[sample * kWidth]}; }

  // Calls use(label by modelet and row, number of the label, modelet).
  template <class Use>
  void for_each_label(const Use& use) const {
    const std::vector<Modelet*>& modelets = network_->output().modelets();
    for (size_t m = 0; m < modelets.size(); ++m)
      for (size_t row = 0; row < modelets[m]->spec().neurons(); ++row)
        use(LabelRow{m, row},
            network_->spread().label(static_cast<uint32_t>(modelets[m]->spec().begin + row)),
            std::as_const(*modelets[m]));
  }

  // Sum over the pairs of a label of value * x_f / |x|.
  static double product(const Sample& x, const LabelPairs& pairs) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < x.features.size(); ++i) {
      squares += double{x.values[i]} * x.values[i];
      for (size_t p = 0; p < pairs.features.size(); ++p)
        if (pairs.features[p] == x.features[i]) sum += double{x.values[i]} * pairs.values[p];
    }
    return sum / std::sqrt(squares);
  }

  // What a term adds to the logit of a label and to its score.
  struct Added {
    double logit = 0, offset = 0;
  };
  static Added network_adds(const Query& query, const Modelet& modelet, size_t row, uint32_t) {
    double sum = modelet.parameters().bias(row);
    for (size_t c = 0; c < kWidth; ++c)
      sum += double{query.hidden[c]} * modelet.parameters().floats().row(row)[c];
    return {.logit = sum};
  }
  static Added centroid_adds(const Query& query, const Modelet& modelet, size_t row, uint32_t) {
    const Pairs& pairs = modelet.direct()->pairs;
    if (pairs.norm(row) == 0) return {};
    const double scale = modelet.direct()->scale(frequency_class(pairs.positives(row)));
    return {.logit = (pairs.positives(row) < 10 ? 0.8 : 1) * scale * product(query.sample, pairs.sums(row)) /
                     pairs.norm(row)};
  }
  static Added classifier_adds(const Query& query, const Modelet& modelet, size_t row, uint32_t) {
    const Direct& direct = *modelet.direct();
    const auto weights = direct.pairs.of_row(std::span(direct.classifiers->weights), row);
    return {.logit = product(query.sample, {direct.pairs.features(row), weights.data()}),
            .offset = direct.classifiers->biases[row]};
  }
  template <int kWeight>  // of own items; 0: they are excluded
  static Added own_items_add(const Query& query, const Modelet&, size_t, uint32_t label) {
    const Sample& x = query.sample;
    for (size_t i = 0; i < x.features.size(); ++i)
      if (x.features[i] == label) return {.logit = (kWeight == 0 ? double{kExcluded} : kWeight) * x.values[i]};
    return {};
  }

  // The scores [samples, labels] of the batch.
  std::vector<float> scores() {
    LabelRanker ranker(network_->scoring(), pool_);
    std::vector<float> scores(batch_.size() * kLabels);
    ranker.score_dense({transposed_.data(), kWidth, columns_, columns_}, batch_.size(), scores.data(),
                       &batch_);
    return scores;
  }
  // Scores of one sample [neurons], computed as single queries are.
  std::vector<float> scores_of_one(const Query& query) {
    const Scoring& scoring = network_->scoring();
    std::vector<float> scores(kLabels);
    scoring.terms().front()->add_logits(query, scores.data());
    FeatureIndex(scoring).add_to(query, scores.data());
    for_each_label([&](LabelRow label, uint32_t, const Modelet& modelet) {
      float& score = scores[modelet.spec().begin + label.row];
      score = scoring.factor(label) * score + scoring.constant(label);
    });
    return scores;
  }
  static void expect_near(double value, double expected) {
    if (std::isinf(expected))
      EXPECT_EQ(value, expected);
    else
      EXPECT_NEAR(value, expected, 1e-4 + 1e-6 * std::abs(expected));
  }
  // The shares of every score add up to it, in a batch and for a single query.
  void expect_shares_add_up() {
    const std::vector<float> all = scores();
    for (size_t s = 0; s < batch_.size(); ++s) {
      const std::vector<float> single = scores_of_one(query(s));
      for_each_label([&](LabelRow label, uint32_t number, const Modelet& modelet) {
        double sum = 0;
        for (const Scoring::Share& share : network_->scoring().explain(query(s), label)) sum += share.value;
        expect_near(all[s * kLabels + number], sum);
        expect_near(single[modelet.spec().begin + label.row], sum);
      });
    }
  }

  testing::TemporaryFolder folder_;
  Dataset train_, test_;
  Experiment experiment_;
  ThreadPool pool_{2};
  std::unique_ptr<Network> network_;
  Batch batch_;
  size_t columns_ = 0;
  AlignedVector<float> hidden_, transposed_;
};

TEST_F(TermsTest, SharesOfAScoreAddUpToIt) { expect_shares_add_up(); }

// In a batch a term that is alone adds what its formula says, and it says the same of its share among all terms.
TEST_F(TermsTest, EachAddsWhatItsFormulaSays) {
  const std::vector<Modelet*>& modelets = network_->output().modelets();
  const ScoringSettings plain{.sampling = experiment_.sampling, .train = experiment_.train};
  ScoringSettings centroids = plain, classifiers = plain, excluded = plain, favoured = plain;
  centroids.centroids = true;
  excluded.own_weight = kExcluded;
  favoured.own_weight = 3;
  centroids.centroid_share = 0.8f;
  classifiers.classifiers = 2;
  const struct {
    std::string name;
    ScoringSettings settings;
    Added (*formula)(const Query&, const Modelet&, size_t, uint32_t);
  } kTerms[] = {{"network", plain, network_adds},
                {"centroids", centroids, centroid_adds},
                {"classifiers", classifiers, classifier_adds},
                {"own items", excluded, own_items_add<0>},
                {"own items", favoured, own_items_add<3>}};
  for (const auto& term : kTerms) {
    const Scoring alone(modelets, network_->spread(), term.settings);
    ASSERT_EQ(alone.terms().back()->name(), term.name);
    LabelRanker ranker(alone, pool_);
    std::vector<float> scores(batch_.size() * kLabels);
    ranker.score_dense({transposed_.data(), kWidth, columns_, columns_}, batch_.size(), scores.data(),
                       &batch_);
    size_t nonzero = 0;
    for (size_t s = 0; s < batch_.size(); ++s)
      for_each_label([&](LabelRow label, uint32_t number, const Modelet& modelet) {
        const Added added = term.formula(query(s), modelet, label.row, number);
        double expected = added.logit + added.offset;
        nonzero += added.logit != 0 ? 1 : 0;
        for (const Scoring::Share& share : network_->scoring().explain(query(s), label))
          if (share.name == term.name && term.settings.own_weight <= 0)  // the network excludes own items
            expect_near(share.value, network_->scoring().factor(label) * added.logit + added.offset);
        if (term.name != "network") expected += network_adds(query(s), modelet, label.row, number).logit;
        expect_near(scores[s * kLabels + number], expected);
      });
    EXPECT_GT(nonzero, 10u) << term.name << " says nothing";
  }
}

// Only some labels may be predicted, and each occurrence of feature 3 speaks for label 7.
class NewTerm final : public Term {
 public:
  static constexpr uint32_t kFeature = 3, kLabel = 7;
  static constexpr float kForIt = 5;

  explicit NewTerm(const Network& network) : network_(network), neuron_(network.spread().neuron(kLabel)) {}
  std::string_view name() const override { return "new"; }
  TermNeeds needs() const override { return {network_.shape().features, true}; }
  static bool allowed(uint32_t label) { return label % 3 != 0; }

  void add_offsets(const LabelRows& labels, float* offsets) const override {
    for (size_t i = 0; i < labels.rows.size(); ++i)
      if (!allowed(network_.spread().label(neuron({labels.modelet, labels.rows[i]}))))
        offsets[i] -= std::numeric_limits<float>::infinity();
  }
  float logit(const Query& query, LabelRow label) const override {
    return neuron(label) == neuron_ ? kForIt * value(query.sample) : 0;
  }
  void add_logits(const Query& query, float* logits) const override {
    logits[neuron_] += kForIt * value(query.sample);
  }
  void add_logits(const QueryBatch& batch, const LabelRows& labels, TermScratch&,
                  float* logits) const override {
    for (size_t i = 0; i < labels.rows.size(); ++i) {
      if (neuron({labels.modelet, labels.rows[i]}) != neuron_) continue;
      const auto [samples, values] = batch.features().at(kFeature);
      for (size_t s = 0; s < samples.size(); ++s)
        logits[i * batch.columns() + samples[s]] += kForIt * values[s];
    }
  }

 private:
  static float value(const Sample& x) {
    for (size_t i = 0; i < x.features.size(); ++i)
      if (x.features[i] == kFeature) return x.values[i];
    return 0;
  }
  uint32_t neuron(LabelRow label) const {
    return static_cast<uint32_t>(network_.scoring().modelets()[label.modelet]->spec().begin + label.row);
  }

  const Network& network_;
  uint32_t neuron_;
};

TEST_F(TermsTest, ANewOneIsAddedWithoutTouchingTheOthers) {
  const std::vector<float> before = scores();
  network_->scoring().add(std::make_unique<NewTerm>(*network_));
  const std::vector<float> after = scores();
  size_t with_feature = 0;
  for (size_t s = 0; s < batch_.size(); ++s) {
    const Sample x = test_.sample(s);
    for_each_label([&](LabelRow label, uint32_t number, const Modelet&) {
      double added = NewTerm::allowed(number) ? 0 : -std::numeric_limits<double>::infinity();
      for (size_t i = 0; i < x.features.size() && number == NewTerm::kLabel; ++i)
        if (x.features[i] == NewTerm::kFeature) {
          added += network_->scoring().factor(label) * NewTerm::kForIt * x.values[i];
          ++with_feature;
        }
      expect_near(after[s * kLabels + number], before[s * kLabels + number] + added);
    });
  }
  EXPECT_GT(with_feature, 0u);
  expect_shares_add_up();
}

}  // namespace
}  // namespace modelet::shard
