// Recipes: what the rules choose for data of known shapes, that given keys stay, what decides between trials
// (with made-up results), and the file that repeats the choice.
#include "node_agent/train/recipe/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/experiment/reader.h"
#include "node_agent/train/recipe/choice_text.h"
#include "node_agent/train/recipe/choose.h"
#include "node_agent/train/recipe/trial.h"
#include "shard/data/store/dataset.h"

namespace modelet::agent {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr Machine kMachine{.memory_bytes = uint64_t{16} << 30, .bf16_products = true};

GivenKeys given(std::vector<std::string> keys = {}) {
  keys.insert(keys.begin(), {"data.train=train.txt", "data.test=test.txt"});
  return given_settings("given", std::move(keys));
}

// Facts of 46,000 texts with many labels.
DataFacts wide_facts() {
  return {.rows = 46000,
          .features = 32000,
          .labels = 37000,
          .features_per_row = 40,
          .labels_per_row = 6,
          .most_labels = 50,
          .often_share = 0.4,
          .smallest = 0.01f,
          .largest = 1,
          .unit_rows = true};
}

DataFacts digits_facts() {
  return {.rows = 5000,
          .features = 64,
          .labels = 10,
          .features_per_row = 40,
          .labels_per_row = 1,
          .most_labels = 1,
          .smallest = 0,
          .largest = 16};
}

Experiment recipe_for(const DataFacts& facts, const GivenKeys& of = given(),
                      const Machine& machine = kMachine) {
  return with_settings(of.experiment, recipe_settings(of, facts, machine));
}

TEST(DataFacts, AreThoseOfTheSamples) {
  const std::string text = ::testing::TempDir() + "facts.txt", prepared = ::testing::TempDir() + "facts.mlt";
  std::ofstream(text) << "4 5 4\n0,1 0:3 2:-4\n0 1:2\n 3:1\n0,1,3 0:0.6 1:0.8\n";
  shard::prepare_data(text, Normalize::kNone, {}, prepared);
  const DataFacts facts = measure_facts(shard::Dataset::open(prepared));
  EXPECT_EQ(std::tuple(facts.rows, facts.features, facts.labels), std::tuple(4u, 5u, 4u));
  EXPECT_EQ(facts.features_per_row, 1.5);
  EXPECT_EQ(std::tuple(facts.labels_per_row, facts.most_labels), std::tuple(1.5, 3u));
  EXPECT_EQ(std::tuple(facts.unseen_labels, facts.rare_labels, facts.top_share), std::tuple(1u, 2u, 0.75));
  EXPECT_EQ(std::tuple(facts.smallest, facts.largest), std::tuple(-4.0f, 3.0f));
  EXPECT_FALSE(facts.unit_rows || facts.one_value || facts.dense() || facts.one_label());
  shard::prepare_data(text, Normalize::kL2, {}, prepared);
  EXPECT_TRUE(measure_facts(shard::Dataset::open(prepared)).unit_rows);
}

// 2,000 samples have 2 of 50 items as features and get either 2 other items, or any items, as labels.
TEST(DataFacts, KnowWhetherLabelsAreNeverAmongTheFeatures) {
  const auto facts_of = [](uint32_t last_label, const char* value = "1") {
    const std::string text = ::testing::TempDir() + "items.txt",
                      prepared = ::testing::TempDir() + "items.mlt";
    std::ofstream out(text);
    out << "2000 50 50\n";
    for (uint32_t row = 0; row < 2000; ++row) {
      const uint32_t item = row % 46;
      out << item << ',' << item + last_label << ' ' << item + 1 << ":1 " << item + 2 << ':' << value << '\n';
    }
    out.close();
    shard::prepare_data(text, Normalize::kNone, {}, prepared);
    return measure_facts(shard::Dataset::open(prepared));
  };
  EXPECT_TRUE(facts_of(3).own_excluded);
  EXPECT_FALSE(facts_of(2).own_excluded);
  EXPECT_FALSE(facts_of(3, "-1").own_excluded) << "a weight times this value would favour the item";
}

TEST(Recipe, ExcludesWhatSamplesHave) {
  DataFacts facts = wide_facts();
  EXPECT_FALSE(recipe_for(facts).model.exclude_own);
  facts.own_excluded = true;
  EXPECT_TRUE(recipe_for(facts).model.exclude_own);
  EXPECT_FALSE(recipe_for(facts, given({"model.centroids=false"})).model.exclude_own);
  EXPECT_FALSE(recipe_for(facts, given({"model.exclude_own=false"})).model.exclude_own);
  facts.labels = 300;
  EXPECT_TRUE(recipe_for(facts).model.exclude_own);
}

TEST(Recipe, FollowsTheLabels) {
  EXPECT_EQ(recipe_for(wide_facts()).model.loss, Loss::kSigmoid);
  EXPECT_EQ(recipe_for(digits_facts()).model.loss, Loss::kSoftmax);
  DataFacts clicks = digits_facts();
  clicks.labels = 1;
  EXPECT_EQ(recipe_for(clicks).model.loss, Loss::kSigmoid);

  EXPECT_EQ(recipe_for(digits_facts()).sampling.mode, SamplingMode::kFull);
  EXPECT_EQ(recipe_for(wide_facts()).sampling.mode, SamplingMode::kUniform);
  DataFacts wider = wide_facts();
  wider.labels = 670000;
  EXPECT_GT(recipe_for(wider).sampling.uniform, recipe_for(wide_facts()).sampling.uniform);
}

// Of labels most of which are in one or two samples.
DataFacts rare_facts() {
  DataFacts rare = wide_facts();
  rare.rare_labels = 24000;
  return rare;
}

TEST(Recipe, ClassifiersNeedFewerDraws) {
  const Experiment with = recipe_for(wide_facts());
  ASSERT_GT(with.model.classifiers, 0);
  EXPECT_EQ(with.sampling.uniform, 2 * with.train.batch);
  EXPECT_EQ(recipe_for(rare_facts()).sampling.uniform, 4 * with.train.batch);
  EXPECT_GT(recipe_for(wide_facts(), given({"model.classifiers=0"})).sampling.uniform, with.sampling.uniform);
  EXPECT_GT(recipe_for(wide_facts(), given({"model.loss=softmax"})).sampling.uniform, with.sampling.uniform);
  EXPECT_EQ(recipe_for(wide_facts(), given({"train.batch=64"})).sampling.uniform, 512u);
  EXPECT_EQ(recipe_for(wide_facts(), given({"sampling.uniform=100"})).sampling.uniform, 100u);
}

TEST(Recipe, OneOfManyLabelsNeedsANarrowLayerAndFewPasses) {
  const GivenKeys softmax = given({"model.loss=softmax"});
  const Experiment one = recipe_for(wide_facts(), softmax), several = recipe_for(wide_facts());
  EXPECT_LT(2 * one.model.hidden[0], several.model.hidden[0]);
  EXPECT_LT(one.train.epochs,
            recipe_for(wide_facts(), given({"model.loss=softmax", "model.classifiers=0"})).train.epochs);
  EXPECT_EQ(recipe_for(wide_facts(), given({"model.loss=softmax", "model.centroids=false"})).model.hidden,
            several.model.hidden);
  DataFacts more = wide_facts();
  more.rows = 1000000;
  EXPECT_EQ(recipe_for(more, softmax).model.hidden, several.model.hidden);
}

TEST(Recipe, FewLabelsASampleNeedANarrowerLayer) {
  DataFacts few = wide_facts();
  few.labels_per_row = 2;
  const auto width = [&](std::vector<std::string> settings = {}) {
    return recipe_for(few, given(std::move(settings))).model.hidden[0];
  };
  const uint32_t usual = recipe_for(wide_facts()).model.hidden[0];
  EXPECT_EQ(2 * width(), usual);
  EXPECT_EQ(width({"model.centroids=false"}), usual);
  EXPECT_EQ(width({"model.hidden=[1024]"}), 1024u);
  few.rows = 200000;
  EXPECT_EQ(width(), 3 * usual / 4);
  few.rows = 300000;
  EXPECT_EQ(width(), usual) << "not measured";
  few.rows = wide_facts().rows;
  few.labels = 600;
  EXPECT_EQ(2 * width(), usual);
}

TEST(Recipe, LessDataMeansNarrowerLayersAndMoreSmallerSteps) {
  Experiment before = recipe_for(wide_facts());
  for (const uint64_t rows : {10000, 3000, 300, 1}) {
    DataFacts facts = wide_facts();
    facts.rows = rows;
    const Experiment now = recipe_for(facts);
    EXPECT_LE(now.model.hidden[0], before.model.hidden[0]) << rows;
    EXPECT_LE(now.train.batch, before.train.batch) << rows;
    EXPECT_GE(now.train.epochs, before.train.epochs) << rows;
    before = now;
  }
  DataFacts large = wide_facts();
  large.rows = 10000000;
  EXPECT_LT(recipe_for(large).train.epochs, recipe_for(wide_facts()).train.epochs);
}

TEST(Recipe, FitsIntoTheMachine) {
  DataFacts facts = wide_facts();
  facts.labels = 3000000;
  for (const uint64_t gib : {64, 8, 4}) {
    const Machine machine{.memory_bytes = gib << 30};
    EXPECT_LE(model_bytes(recipe_for(facts, given(), machine), facts), machine.memory_bytes / 2) << gib;
  }
  EXPECT_EQ(recipe_for(facts, given(), {.memory_bytes = 64ull << 30}).model.precision, Precision::kFp32);
}

TEST(Recipe, SeveralLabelsOfWordsHaveClassifiers) {
  DataFacts facts = wide_facts();
  facts.labels = 58;
  facts.rare_labels = 0;
  const Experiment several = recipe_for(facts);
  EXPECT_GT(several.model.classifiers, 0);
  EXPECT_EQ(several.sampling.prior, 0) << "all labels take part in each step";
  EXPECT_LT(several.model.hidden[0], recipe_for(wide_facts()).model.hidden[0]);
  facts.labels = 4;
  EXPECT_EQ(recipe_for(facts).model.classifiers, 0);
  EXPECT_LT(recipe_for(facts).model.hidden[0], several.model.hidden[0]);
}

TEST(Recipe, LabelsAreMostlyRareIfHalfOfThoseWithSamplesAre) {
  const Experiment rare = recipe_for(rare_facts());
  EXPECT_LT(rare.model.rare_trust, 1);
  DataFacts fewer = rare_facts();
  fewer.rare_labels = 15000;
  EXPECT_EQ(recipe_for(fewer).model.rare_trust, 1);
  EXPECT_GT(recipe_for(fewer).model.classifiers, rare.model.classifiers);
  fewer.unseen_labels = 10000;
  EXPECT_EQ(recipe_for(fewer).model.rare_trust, rare.model.rare_trust) << "15,000 of 27,000";
}

TEST(Recipe, FewSamplesNeedFewPassesOfAWiderLayer) {
  DataFacts few = rare_facts();
  few.rows = 2000;
  const Experiment recipe = recipe_for(few), many = recipe_for(rare_facts());
  EXPECT_EQ(recipe.model.hidden, std::vector<uint32_t>{256});
  EXPECT_EQ(recipe.train.hidden_dropout, 0.5f);
  EXPECT_GT(recipe.model.rare_trust, many.model.rare_trust) << "likely labels are rare as well";
  EXPECT_LT(recipe.model.rare_trust, 1);
  EXPECT_GT(recipe.model.classifiers, many.model.classifiers);
  DataFacts short_samples = few;
  short_samples.features_per_row = 3;
  EXPECT_GT(recipe_for(short_samples).train.epochs, recipe.train.epochs);
  EXPECT_GT(recipe_for(few, given({"model.loss=softmax"})).train.epochs, recipe.train.epochs);
  EXPECT_GT(recipe_for(few, given({"model.classifiers=0"})).train.epochs, recipe.train.epochs);
  DataFacts few_labels = few;
  few_labels.labels = 58;
  few_labels.rare_labels = 0;
  EXPECT_EQ(recipe_for(few_labels).model.hidden, std::vector<uint32_t>{128}) << "not measured";
}

TEST(Recipe, StrongClassifiersAreNotForSamplesOfManyLabels) {
  DataFacts facts = wide_facts();
  const float usual = recipe_for(facts).model.classifiers;
  facts.labels_per_row = 16;
  EXPECT_LT(recipe_for(facts).model.classifiers, usual);
}

TEST(Recipe, ADirectPathAllowsLargerSteps) {
  const auto rate = [](std::vector<std::string> settings) {
    return recipe_for(wide_facts(), given(std::move(settings))).train.learning_rate;
  };
  EXPECT_GT(rate({}), rate({"model.centroids=false"}));
  EXPECT_GT(rate({}), rate({"model.loss=softmax"})) << "samples of rare labels are learned by heart";
  EXPECT_EQ(rate({"train.batch=64"}), rate({}));
  EXPECT_LT(rate({"train.batch=64", "model.centroids=false"}), rate({"model.centroids=false"}));
}

TEST(Recipe, ManyLabelsOfWordsHaveADirectPath) {
  const Experiment words = recipe_for(wide_facts());
  EXPECT_TRUE(words.model.centroids);
  EXPECT_EQ(words.sampling.prior, 0.75f);
  EXPECT_EQ(words.model.centroid_share, 0.8f);
  EXPECT_FALSE(recipe_for(digits_facts()).model.centroids);
  EXPECT_EQ(recipe_for(digits_facts()).sampling.prior, 0);
  EXPECT_TRUE(recipe_for(wide_facts(), given({"cluster.replicas=2"})).model.centroids);
  EXPECT_EQ(recipe_for(wide_facts(), given({"model.centroids=false"})).sampling.prior, 0);
  EXPECT_EQ(recipe_for(wide_facts(), given({"model.centroids=false"})).model.centroid_share, 1);
  const DataFacts rare = rare_facts();
  DataFacts many = rare;
  many.rows = 170000;
  EXPECT_LT(recipe_for(many).sampling.uniform, recipe_for(rare).sampling.uniform);
  EXPECT_GT(recipe_for(many).model.hidden[0], recipe_for(rare).model.hidden[0]);
  EXPECT_EQ(recipe_for(many).train.epochs, recipe_for(rare).train.epochs);
  EXPECT_EQ(words.model.rare_trust, 1);
  EXPECT_LT(recipe_for(rare).model.rare_trust, 1);
  DataFacts short_samples = rare;
  short_samples.features_per_row = 3;
  EXPECT_GT(recipe_for(short_samples).model.rare_trust, recipe_for(rare).model.rare_trust);
  EXPECT_LT(recipe_for(short_samples).model.classifiers, recipe_for(rare).model.classifiers);
  DataFacts only_rare = rare;
  only_rare.often_share = 0.01;
  EXPECT_EQ(recipe_for(only_rare).model.rare_trust, 1) << "there is nothing that they would displace";
  EXPECT_EQ(recipe_for(rare, given({"model.loss=softmax"})).model.rare_trust, 1) << "has no level of its own";
  EXPECT_EQ(recipe_for(rare, given({"model.loss=softmax"})).sampling.prior, 0.75f);
  EXPECT_LT(recipe_for(rare).model.hidden[0], words.model.hidden[0]);
  EXPECT_EQ(recipe_for(rare, given({"model.centroids=false"})).model.hidden[0], words.model.hidden[0]);
  EXPECT_TRUE(alternatives(given(), wide_facts(), words).empty()) << "studies have decided everything";
}

TEST(Recipe, ScalesWhatNeedsIt) {
  const auto scaling = [](const DataFacts& facts) {
    return with_settings(given().experiment, scaling_settings(given(), facts)).data.normalize;
  };
  EXPECT_EQ(scaling(wide_facts()), Normalize::kNone);  // rows have length 1 already
  DataFacts counts = wide_facts();
  counts.unit_rows = false;
  EXPECT_EQ(scaling(counts), Normalize::kL2);
  DataFacts measured = digits_facts();
  EXPECT_EQ(scaling(measured), Normalize::kL2);  // values of up to 16
  measured.largest = 1;
  EXPECT_EQ(scaling(measured), Normalize::kNone);
}

TEST(Recipe, HeldOutSamplesAreAskedAfterEachEpoch) {
  EXPECT_EQ(recipe_for(wide_facts()).train.evaluate_every, 0u);
  EXPECT_EQ(
      recipe_for(wide_facts(), given({"data.validation=0.05", "train.patience=2"})).train.evaluate_every, 1u);
}

// With an experiment file these keys alone would be refused, because the defaults of others do not fit them.
TEST(Recipe, AKeyBringsWhatItNeeds) {
  const Experiment own = recipe_for(wide_facts(), given({"model.exclude_own=true"}));
  EXPECT_TRUE(own.model.exclude_own && own.model.centroids);
  EXPECT_EQ(recipe_for(wide_facts(), given({"model.rare_trust=0.5"})).model.rare_trust, 0.5f);
  EXPECT_TRUE(given({"model.exclude_own = true"}).experiment.model.centroids);
  for (const char* neutral :
       {"model.exclude_own=false", "model.rare_trust=1", "model.rare_trust=1.0"})
    EXPECT_EQ(given({neutral}).keys.size(), given().keys.size() + 1) << neutral;
  const Experiment with_centroids =
      recipe_for(wide_facts(), given({"model.exclude_own=true", "model.centroids=true"}));
  EXPECT_EQ(with_centroids.model.loss, Loss::kSigmoid) << "nothing else is pinned";
  EXPECT_THROW(given({"model.rare_trust=0.5", "model.loss=softmax"}), UsageError);
}

// Tries every key that any rule, alternative or rung sets.
TEST(Recipe, GivenKeysStay) {
  for (const DataFacts& facts : {wide_facts(), digits_facts()}) {
    const GivenKeys nothing = given();
    const Experiment recipe = recipe_for(facts);
    std::vector<Setting> settings = recipe_settings(nothing, facts, kMachine);
    for (const Setting& setting : scaling_settings(nothing, facts)) settings.push_back(setting);
    for (const Alternative& alternative : alternatives(nothing, facts, recipe))
      settings.insert(settings.end(), alternative.settings.begin(), alternative.settings.end());
    const auto short_of_time = fit_to_time(nothing, facts, kMachine, recipe, 1e-9, {1, 1}, 100);
    settings.insert(settings.end(), short_of_time.settings.begin(), short_of_time.settings.end());
    ASSERT_GT(settings.size(), 10u);
    for (const Setting& setting : settings) {
      EXPECT_NE(setting.reason, "") << setting.key;
      const GivenKeys one = given({setting.key + "=" + setting.value});
      std::vector<Setting> chosen = recipe_settings(one, facts, kMachine);
      for (const Setting& more : scaling_settings(one, facts)) chosen.push_back(more);
      for (const Alternative& alternative : alternatives(one, facts, recipe_for(facts, one)))
        chosen.insert(chosen.end(), alternative.settings.begin(), alternative.settings.end());
      const auto fitted = fit_to_time(one, facts, kMachine, recipe_for(facts, one), 1e-9, {1, 1}, 100);
      chosen.insert(chosen.end(), fitted.settings.begin(), fitted.settings.end());
      for (const Setting& other : chosen) EXPECT_NE(other.key, setting.key);
    }
  }
}

TEST(Recipe, LessTimeMeansLessWorkAndMoreTimeMore) {
  const DataFacts facts = wide_facts();
  const Experiment recipe = recipe_for(facts);
  const Pace pace{.train = {.per_cost = 1e-11}, .score = {.per_cost = 1e-11}};
  const double usual = seconds_of(recipe, facts, pace, 10000);
  double before = 1e300;
  for (const double seconds : {10 * usual, usual, usual / 2, usual / 10, usual / 50}) {
    const Fitted fitted = fit_to_time(given(), facts, kMachine, recipe, seconds, pace, 10000);
    const Experiment now = with_settings(recipe, fitted.settings);
    EXPECT_TRUE(fitted.fits) << seconds;
    EXPECT_LE(seconds_of(now, facts, pace, 10000), seconds);
    EXPECT_LT(seconds_of(now, facts, pace, 10000), before);
    before = seconds_of(now, facts, pace, 10000);
  }
  for (double seconds = usual / 30; seconds < 1.6 * usual; seconds *= 1.2) {
    const Fitted fitted = fit_to_time(given(), facts, kMachine, recipe, seconds, pace, 10000);
    EXPECT_GT(seconds_of(with_settings(recipe, fitted.settings), facts, pace, 10000), 0.6 * seconds)
        << seconds / usual;
  }
  EXPECT_FALSE(fit_to_time(given(), facts, kMachine, recipe, usual / 1e6, pace, 10000).fits);
  // Classifiers stay as long as there is time for them beside a narrow layer.
  ASSERT_GT(recipe.model.classifiers, 0.0f);
  const auto narrow = std::to_string(recipe.model.hidden[0] / 16);
  const auto few = std::to_string(std::lround(0.4 * recipe.train.epochs));
  const GivenKeys smallest = given({"model.hidden=[" + narrow + "]", "train.epochs=" + few});
  const double enough = 1.001 * seconds_of(recipe_for(facts, smallest), facts, pace, 10000);
  for (const double more : {0.99, 1.0, 1.1, 1.3, 1.6}) {
    const Fitted fitted = fit_to_time(given(), facts, kMachine, recipe, more * enough, pace, 10000);
    EXPECT_EQ(with_settings(recipe, fitted.settings).model.classifiers > 0, more >= 1) << more;
  }
  // If the width is given, only passes can be saved.
  const GivenKeys wide = given({"model.hidden=[1024]"});
  const Fitted fitted = fit_to_time(wide, facts, kMachine, recipe_for(facts, wide), usual / 1e6, pace, 10000);
  EXPECT_EQ(with_settings(recipe, fitted.settings).model.hidden[0], 1024u);
  EXPECT_EQ(with_settings(recipe, fitted.settings).train.epochs, 1u);
}

TEST(Recipe, EachEvaluationTakesItsTime) {
  const DataFacts facts = wide_facts();
  const auto rows = static_cast<double>(facts.rows);
  const auto seconds = [&](std::vector<std::string> settings, const Pace& pace, uint64_t scored) {
    settings.emplace_back("train.epochs=8");
    return seconds_of(recipe_for(facts, given(std::move(settings))), facts, pace, scored);
  };
  const Pace fits{.fit = 1};
  EXPECT_DOUBLE_EQ(seconds({}, fits, 10000), rows);
  EXPECT_DOUBLE_EQ(seconds({"train.evaluate_every=3"}, fits, 10000), 3 * rows);
  EXPECT_NEAR(seconds({"data.validation=0.25"}, fits, 10000), 8 * 0.75 * rows, 1);
  const Pace scores{.score = {.per_cost = 1}};
  const std::string no_fits = "model.classifiers=0";
  EXPECT_DOUBLE_EQ(seconds({no_fits, "train.evaluate_every=1"}, scores, 500),
                   8 * seconds({no_fits}, scores, 500));
  EXPECT_NEAR(seconds({no_fits, "data.validation=0.25"}, scores, 0),
              8 * seconds({no_fits}, scores, static_cast<uint64_t>(0.25 * rows)), 1);
}

TEST(Recipe, SamplesWithoutLabelsAreNegatives) {
  DataFacts facts = wide_facts();
  facts.most_labels = 1;
  facts.labels_per_row = 1;
  EXPECT_EQ(recipe_for(facts).model.loss, Loss::kSoftmax);
  EXPECT_EQ(
      recipe_for(facts, given({"data.format=table", "table.columns=[\"label:a,b\",\"num:c\"]"})).model.loss,
      Loss::kSigmoid);
  facts.labels_per_row = 0.1;
  EXPECT_EQ(recipe_for(facts).model.loss, Loss::kSigmoid);
  const GivenKeys open = given({"model.centroids=false"});
  EXPECT_EQ(std::ranges::count(alternatives(open, facts, recipe_for(facts, open)), "loss softmax",
                               &Alternative::name),
            0);
}

TEST(Recipe, TimeForEveryWidthLeavesLessForTheWidth) {
  const DataFacts facts = wide_facts();
  const Experiment recipe = recipe_for(facts);
  ASSERT_GT(recipe.model.classifiers, 0.0f);
  constexpr Pace kPace{.train = {.per_cost = 1e-11}, .score = {.per_cost = 1e-11}};
  const double usual = seconds_of(recipe, facts, kPace, 10000), rows = static_cast<double>(facts.rows);
  const auto in_time = [&](const Pace& pace) {
    const Fitted fitted = fit_to_time(given(), facts, kMachine, recipe, usual, pace, 10000);
    const Experiment found = with_settings(recipe, fitted.settings);
    EXPECT_EQ(fitted.fits, seconds_of(found, facts, pace, 10000) <= usual);
    return fitted.fits ? std::optional(found.model) : std::nullopt;
  };
  EXPECT_EQ(in_time(kPace)->hidden, recipe.model.hidden);

  Pace beside = kPace;
  beside.train.beside = 0.6 * usual / (rows * recipe.train.epochs);
  EXPECT_LT(in_time(beside)->hidden[0], recipe.model.hidden[0]);
  Pace fits = kPace;
  fits.fit = 0.6 * usual / rows;
  EXPECT_LT(in_time(fits)->hidden[0], recipe.model.hidden[0]);
  EXPECT_GT(in_time(fits)->classifiers, 0.0f);
  fits.fit *= 2;
  EXPECT_EQ(in_time(fits)->classifiers, 0.0f) << "fitting them alone takes longer than there is time";
  Pace starts = kPace;
  starts.start = 1.1 * usual;
  EXPECT_FALSE(in_time(starts));
}

TEST(Recipe, ClassifiersOfLabelsWithoutSamplesTakeNoTime) {
  constexpr Pace kPace{.score = {.per_cost = 1e-11}};
  DataFacts facts = wide_facts();
  const Experiment recipe = recipe_for(facts);
  const double all = seconds_of(recipe, facts, kPace, 0);
  facts.unseen_labels = facts.labels / 2;
  EXPECT_NEAR(seconds_of(recipe, facts, kPace, 0), all / 2, 0.01 * all);
  EXPECT_NEAR(seconds_of(recipe, facts, kPace, 100) - seconds_of(recipe, facts, kPace, 0),
              100 * 1e-11 * cost_of(recipe, wide_facts()).score, 1e-9)
      << "predictions are for all labels";
}

TEST(Recipe, TwoWidthsTellWhatDoesNotDependOnTheWidth) {
  const auto expect = [](const SampleSeconds& found, double beside, double per_cost) {
    EXPECT_DOUBLE_EQ(found.beside, beside);
    EXPECT_DOUBLE_EQ(found.per_cost, per_cost);
  };
  expect(seconds_between({100, 7}, {300, 11}), 5, 0.02);
  expect(seconds_between({100, 2}, {300, 12}), 0, 0.04);  // more than in proportion: nothing is beside
  expect(seconds_between({100, 7}, {300, 6}), 7, 0);      // noise
  expect(seconds_between({300, 6}, {300, 6}), 0, 0.02);
}

// Trials with made-up results, which depend on what makes an experiment differ.
class FakeTrials final : public Trials {
 public:
  Result run(const Experiment& experiment, const TrialPlan& plan) override {
    experiments.push_back(experiment);
    return {.score = score(experiment), .seconds = seconds_per_trial * plan.train_rows};
  }
  Pace pace(const Experiment&, double) override {
    return {.train = {.per_cost = 1e-11}, .score = {.per_cost = 1e-11}, .measuring = seconds_of_pace};
  }

  std::function<double(const Experiment&)> score = [](const Experiment&) { return 0.5; };
  double seconds_per_trial = 1e-4, seconds_of_pace = 0;
  std::vector<Experiment> experiments;
};

Choice choose_with(FakeTrials& trials, const GivenKeys& of = given(), const ChooseOptions& options = {}) {
  return choose(of, {}, wide_facts(), kMachine, options, trials);
}

TEST(Choose, TakesWhatIsClearlyBetterOnly) {
  for (const double gain : {0.05, 0.001}) {
    FakeTrials trials;
    trials.score = [&](const Experiment& e) { return e.model.loss == Loss::kSoftmax ? 0.5 + gain : 0.5; };
    const Choice choice = choose_with(trials, given({"model.centroids=false"}));
    EXPECT_EQ(choice.experiment.model.loss == Loss::kSoftmax, gain > 0.01) << gain;
    ASSERT_EQ(choice.trials.size(), 3u);
    EXPECT_EQ(choice.trials.size(), trials.experiments.size());
    EXPECT_FALSE(choice.trials.front().taken);
    EXPECT_EQ(trials.experiments.back().model.loss,
              choice.experiment.model.loss);  // later trials build on it
    EXPECT_LE(trials.experiments.front().model.hidden[0], choice.experiment.model.hidden[0]);
  }
}

TEST(Choose, TrialsCostAShareOfTheTraining) {
  for (const double share : {0.25, 0.2}) {
    const DataFacts facts = wide_facts();
    const Experiment recipe = recipe_for(facts, given({"model.classifiers=0"}));  // else there are no trials
    const TrialPlan plan = plan_trials(recipe, facts, 3, share);
    ASSERT_GT(plan.train_rows, 0u);
    EXPECT_LE(3 * trial_cost(recipe, facts, plan), share * training_cost(recipe, facts));
    EXPECT_LE(plan.train_rows + plan.held_out_rows, facts.rows);
  }
  DataFacts few = wide_facts();
  few.rows = 500;
  const TrialPlan none = plan_trials(recipe_for(few), few, 3, 0.25);
  EXPECT_EQ(none.train_rows, 0u);
  EXPECT_THAT(none.why_none, HasSubstr("500 samples"));
  EXPECT_EQ(plan_trials(recipe_for(wide_facts()), wide_facts(), 3, 0).why_none, "none are wanted");
}

// Each of 1,000 samples has the feature of its label, of 20, and ten times as much of one of 50 others, which
// hides the label from centroids. The network hardly moves.
TEST(DataTrials, FitClassifiers) {
  const std::string text = ::testing::TempDir() + "trial.txt", prepared = ::testing::TempDir() + "trial.mlt";
  std::ofstream out(text);
  out << "1000 70 20\n";
  for (uint32_t row = 0; row < 1000; ++row)
    out << row * 7 % 20 << ' ' << row * 7 % 20 << ":1 " << 20 + (row * row * 31 + row / 7) % 50 << ":10\n";
  out.close();
  shard::prepare_data(text, Normalize::kNone, {}, prepared);
  const shard::Dataset data = shard::Dataset::open(prepared);
  DataTrials trials(data, measure_facts(data), 1);
  const auto p_at_1 = [&](const std::string& classifiers) {
    const GivenKeys keys = given({"model.hidden=[16]", "modelets.hidden_columns=16", "sampling.mode=full",
                                  "model.centroids=true", "train.epochs=1", "train.learning_rate=1e-9",
                                  "model.classifiers=" + classifiers});
    TrialPlan plan;
    plan.train_rows = 700;
    plan.held_out_rows = 200;
    return trials.run(keys.experiment, plan).p_at_1;
  };
  EXPECT_GT(p_at_1("100"), p_at_1("0") + 0.2);

  for (const int last : {1, 4, 12}) {  // in a step, in the fit of classifiers, in the evaluation
    int checks = 0;
    DataTrials stopped(data, measure_facts(data), 1, [&] {
      if (++checks == last) throw Interrupted("enough");
    });
    TrialPlan plan;
    plan.train_rows = 700;
    plan.held_out_rows = 200;
    EXPECT_THROW(stopped.run(given({"model.hidden=[16]", "modelets.hidden_columns=16", "sampling.mode=full",
                                    "model.centroids=true", "model.classifiers=100", "train.epochs=1"})
                                 .experiment,
                             plan),
                 Interrupted);
    EXPECT_EQ(checks, last);
  }
}

TEST(Choose, EndsTrialsThatTakeTooLong) {
  FakeTrials trials;
  const Choice all = choose_with(trials, given({"model.classifiers=0"}));
  ASSERT_GT(all.trials.size(), 1u);
  class SlowLater final : public Trials {
   public:
    Result run(const Experiment&, const TrialPlan&) override {
      return {.score = 0.5, .seconds = runs++ == 0 ? 1.0 : 1e6};
    }
    Pace pace(const Experiment&, double) override { return {}; }
    int runs = 0;
  } slow;
  const Choice choice = choose(given({"model.centroids=false"}), {}, wide_facts(), kMachine, {}, slow);
  EXPECT_EQ(choice.trials.size(), 2u);
  EXPECT_THAT(choice.notes, Contains(HasSubstr("not tried")));
}

TEST(Choose, MeasuringThePaceIsAPartOfTheTime) {
  FakeTrials quick, slow;
  slow.seconds_of_pace = 70;
  const Choice choice = choose_with(slow, given(), {.seconds = 100, .test_rows = 10000});
  EXPECT_LE(choice.estimated_seconds + choice.trial_seconds, 30);
  EXPECT_GT(choose_with(quick, given(), {.seconds = 100, .test_rows = 10000}).estimated_seconds, 30);
}

TEST(Choose, KeepsATime) {
  double before = 1e300;
  for (const double seconds : {1e5, 50.0, 15.0, 3.0}) {
    FakeTrials trials;
    const DataFacts facts = wide_facts();
    const Choice choice = choose_with(trials, given(), {.seconds = seconds, .test_rows = 10000});
    EXPECT_GT(choice.estimated_seconds, 0);
    EXPECT_LE(choice.estimated_seconds + choice.trial_seconds, seconds);
    EXPECT_LT(training_cost(choice.experiment, facts), before);
    before = training_cost(choice.experiment, facts);
  }
  FakeTrials trials;
  EXPECT_THAT(choose_with(trials, given(), {.seconds = 1e-3}).notes, Contains(HasSubstr("too short")));
}

TEST(Choose, NothingLeftOpenNeedsNoTrials) {
  FakeTrials trials;
  const Choice choice =
      choose_with(trials, given({"model.classifiers=0", "model.loss=sigmoid", "train.learning_rate=1e-3"}));
  for (const Experiment& experiment : trials.experiments) {
    EXPECT_EQ(experiment.model.loss, Loss::kSigmoid);
    EXPECT_EQ(experiment.train.learning_rate, 1e-3f);
  }
  EXPECT_EQ(choice.experiment.train.learning_rate, 1e-3f);
}

TEST(ChoiceText, IsAnExperimentFileThatSaysWhy) {
  FakeTrials trials;
  trials.score = [](const Experiment& e) { return e.model.loss == Loss::kSoftmax ? 0.7 : 0.5; };
  const GivenKeys of = given({"train.seed=7", "exchange.codec=bf16", "model.classifiers=0"});
  const Choice choice = choose_with(trials, of);
  const std::string text = to_commented_toml(choice);
  EXPECT_EQ(to_toml(parse_experiment(text, "/elsewhere/experiment.toml")), to_toml(choice.experiment));
  EXPECT_THAT(text, HasSubstr("seed = 7  # given\n"));
  EXPECT_THAT(text, HasSubstr("codec = \"bf16\"  # given\n"));
  EXPECT_THAT(
      text, HasSubstr("loss = \"softmax\"  # labels compete for a sample; 70.0 instead of 50.0 in a trial\n"));
  const std::vector<std::string> lines = to_lines(choice);
  EXPECT_THAT(lines, Contains(HasSubstr("train.seed")));
  for (const Setting& setting : choice.settings) {
    EXPECT_THAT(lines, Contains(HasSubstr(setting.key + " = " + setting.value)));
    EXPECT_THAT(text, HasSubstr(setting.reason));
  }
}

}  // namespace
}  // namespace modelet::agent
