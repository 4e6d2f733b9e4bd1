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

#include "base/experiment/fields.h"
#include "base/experiment/towers.h"
#include "node_agent/train/recipe/choice_text.h"
#include "node_agent/train/recipe/choose.h"
#include "node_agent/train/recipe/trial.h"
#include "shard/data/store/dataset.h"
#include "tests/shard/data_testing.h"

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
  return training_recipe(of, facts, machine).experiment;
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
  EXPECT_EQ(facts_of(3).own_share, 0);
  EXPECT_FALSE(facts_of(2).own_excluded);
  EXPECT_EQ(facts_of(2).own_share, 0.5) << "one of two labels";
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

TEST(Recipe, SessionsFavourWhatTheyHaveAndVote) {
  const GivenKeys sessions = given({"data.format=sessions", "sessions.positions=0", "sessions.pairs=0"});
  DataFacts facts = wide_facts();
  facts.labels_per_row = facts.most_labels = 1;
  facts.unit_rows = false;
  facts.own_share = 0.4;
  EXPECT_EQ(scaling_recipe(sessions, facts).experiment.data.normalize, Normalize::kNone);
  const Experiment recipe = recipe_for(facts, sessions);
  EXPECT_GT(recipe.model.own_weight, 0);
  EXPECT_LT(recipe.model.hidden[0], recipe_for(facts).model.hidden[0]);
  EXPECT_EQ(recipe_for(facts).model.own_weight, 0);
  EXPECT_EQ(recipe_for(facts, given({"data.format=sessions", "sessions.positions=0", "sessions.pairs=0", "model.own_weight=0"})).model.classifiers,
            recipe_for(facts).model.classifiers) << "without own items there are no votes";
  EXPECT_EQ(recipe_for(facts, given({"data.format=sessions", "sessions.positions=3"})).model.own_weight, 0)
      << "places tell an order, which votes do not know";
  facts.own_share = 0;
  facts.own_excluded = true;
  EXPECT_EQ(recipe_for(facts, sessions).model.own_weight, 0);
}

// In the first text two items follow each other in either order, in the second one a always comes before b.
TEST(Recipe, PlacesAndPairsOfSessionsStayWhereOrderMatters) {
  const shard::testing::TemporaryFolder folder;
  const auto reading = [&](const std::string& text) {
    const std::string key = "data.train=\"" + folder.write("sessions.txt", text).string() + "\"";
    return reading_recipe(given({"data.format=sessions", key})).experiment.sessions;
  };
  const Experiment::Sessions either = reading("a b\nb a\na b\nb a\n"), one = reading("a b\na b\na b c\nc a b\n");
  EXPECT_EQ(either.positions, 0u);
  EXPECT_EQ(either.pairs, 0u);
  EXPECT_EQ(one.positions, Experiment::Sessions().positions);
  EXPECT_EQ(one.pairs, Experiment::Sessions().pairs);
  EXPECT_EQ(one.window, Experiment::Sessions().window);
}

TEST(Recipe, FollowsWhatIsGiven) {
  const auto recipe = [](std::vector<std::string> settings) {
    return recipe_for(wide_facts(), given(std::move(settings)));
  };
  const Experiment usual = recipe({});
  EXPECT_EQ(recipe({"model.loss=softmax"}).model.hidden, std::vector<uint32_t>{256}) << "one of many labels";
  EXPECT_EQ(recipe({"model.hidden=[96]"}).model.hidden, std::vector<uint32_t>{96});
  EXPECT_EQ(recipe({"cluster.replicas=2"}).model.hidden, usual.model.hidden);
  EXPECT_FALSE(recipe({"sampling.mode=lsh_per_sample"}).model.centroids);
  EXPECT_EQ(recipe({"train.batch=64"}).train.learning_rate, usual.train.learning_rate);
  EXPECT_EQ(recipe({"train.batch=64", "model.centroids=false"}).train.learning_rate, 0.0025f);
  EXPECT_EQ(recipe({"train.batch=1024"}).sampling.uniform, 2048u);
  EXPECT_EQ(recipe({"data.format=words"}).train.epochs, 3u);
}

TEST(Recipe, TowersAreNarrowerAndDrawFewerLabels) {
  const Experiment usual = recipe_for(wide_facts()),
                   towers = recipe_for(wide_facts(), given({"model.towers=8"}));
  EXPECT_EQ(towers.model.towers, 8u);
  EXPECT_LT(towers.model.hidden[0], usual.model.hidden[0]);
  EXPECT_LT(towers.sampling.uniform, usual.sampling.uniform);
  DataFacts one_label = wide_facts();
  one_label.labels_per_row = 1;
  one_label.most_labels = 1;
  EXPECT_EQ(recipe_for(one_label, given({"model.towers=8"})).model.loss, Loss::kSigmoid);
  // The work of all towers; the memory of one.
  EXPECT_GT(cost_of(towers, wide_facts()).train, cost_of(tower_experiment(towers), wide_facts()).train);
  EXPECT_LT(model_bytes(towers, wide_facts()), model_bytes(tower_experiment(towers), wide_facts()));
}

TEST(Recipe, AutoTowersAreChosenForLabelsAndNodes) {
  const auto with = [](uint64_t labels, uint32_t nodes, const std::vector<std::string>& settings = {}) {
    DataFacts facts = wide_facts();
    facts.labels = labels;
    std::vector<std::string> all = {"model.towers=auto"};
    all.insert(all.end(), settings.begin(), settings.end());
    return recipe_for(facts, given(all), {.memory_bytes = 1ull << 40, .nodes = nodes}).model;
  };
  EXPECT_EQ(with(1000, 1).towers, 1u);
  EXPECT_EQ(with(5000, 1).towers, 4u);
  EXPECT_EQ(with(50000, 1).towers, 8u);
  EXPECT_EQ(with(50000, 40).towers, 32u);
  EXPECT_EQ(with(20000, 1000).towers, 16u);  // with 1,024 labels each
  EXPECT_EQ(with(50000, 1).divisions, 2u);
  EXPECT_EQ(with(50000, 1).loss, Loss::kSigmoid);
  EXPECT_EQ(with(50000, 1, {"model.loss=softmax"}).towers, 1u);
  EXPECT_THROW(given({"model.towers=auto", "model.divisions=3"}), UsageError);
  // Nobody else leaves the number open.
  EXPECT_THROW(parse_experiment("", "x", {"data.train=a", "data.test=b", "model.towers=auto"}), UsageError);
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
  EXPECT_EQ(recipe_for(facts, given(), {.memory_bytes = 1ull << 40}).model.towers, 1u);
  EXPECT_GT(recipe_for(facts, given(), {.memory_bytes = 4ull << 30}).model.towers, 1u)
      << "rather than a narrow layer";
  EXPECT_GE(recipe_for(facts, given(), {.memory_bytes = 4ull << 30}).model.hidden[0], 128u);
  EXPECT_LE(recipe_for(facts, given({"model.towers=1"}), {.memory_bytes = 4ull << 30}).model.hidden[0], 128u);
  facts.rare_labels = facts.labels;  // a width of 768 is halved to 48, and half of that is no multiple of 16
  EXPECT_EQ(recipe_for(facts, given(), {.memory_bytes = 1 << 20}).model.hidden, std::vector<uint32_t>{32});
}

TEST(Recipe, LargeModelsTakeAThirdOfTheMemory) {
  constexpr Machine kFloats{.memory_bytes = uint64_t{64} << 30};  // multiplies them as fast as bf16
  DataFacts facts = wide_facts();
  facts.labels_per_row = facts.most_labels = 3;
  const Experiment usual = recipe_for(facts, given(), kFloats);
  EXPECT_EQ(usual.model.precision, Precision::kFp32);
  EXPECT_EQ(usual.optimizer.kind, OptimizerKind::kAdam);
  EXPECT_EQ(recipe_for(facts).model.precision, Precision::kBf16) << "it multiplies pairs";
  facts.labels = 3000000;
  const Experiment large = recipe_for(facts, given(), kFloats);
  EXPECT_EQ(large.model.precision, Precision::kBf16);
  EXPECT_EQ(large.optimizer.kind, OptimizerKind::kRmsprop);
  EXPECT_EQ(recipe_for(facts, given({"optimizer.kind=adam"}), kFloats).optimizer.kind, OptimizerKind::kAdam);
  EXPECT_EQ(recipe_for(facts, given({"model.loss=softmax"}), kFloats).optimizer.kind, OptimizerKind::kAdam);
}

TEST(Recipe, ALittleMemoryTakesItsMeansBeforeItsWidth) {
  DataFacts facts = wide_facts();
  facts.labels_per_row = facts.most_labels = 3;
  const Experiment usual = recipe_for(facts);
  const uint64_t bytes = model_bytes(usual, facts);  // in bf16, with means
  const Experiment tight =
      recipe_for(facts, given(), {.memory_bytes = 19 * bytes / 10, .bf16_products = true});
  EXPECT_EQ(tight.model.hidden, usual.model.hidden);
  EXPECT_EQ(tight.optimizer.kind, OptimizerKind::kRmsprop);
}

TEST(Recipe, ScalesWhatNeedsIt) {
  const auto scaling = [](const DataFacts& facts) {
    return scaling_recipe(given(), facts).experiment.data.normalize;
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
  for (const char* neutral : {"model.exclude_own=false", "model.rare_trust=1", "model.rare_trust=1.0"})
    EXPECT_EQ(given({neutral}).keys.size(), given().keys.size() + 1) << neutral;
  const Experiment with_centroids =
      recipe_for(wide_facts(), given({"model.exclude_own=true", "model.centroids=true"}));
  EXPECT_EQ(with_centroids.model.loss, Loss::kSigmoid) << "nothing else is pinned";
  EXPECT_THROW(given({"model.rare_trust=0.5", "model.loss=softmax"}), UsageError);
}

// Tries every key that any rule, alternative or size sets.
TEST(Recipe, GivenKeysStay) {
  const auto chosen_by = [](const GivenKeys& of, const DataFacts& facts) {
    const Recipe recipe = training_recipe(of, facts, kMachine);
    std::vector<Reason> all = recipe.chosen;
    const Recipe fitted = fit_to_time(of, facts, kMachine, recipe.experiment, 1e-9, {1, 1}, 100).recipe;
    for (const Recipe& more : {scaling_recipe(of, facts), fitted})
      all.insert(all.end(), more.chosen.begin(), more.chosen.end());
    for (const Alternative& each : alternatives(of, facts, recipe.experiment))
      all.insert(all.end(), each.chosen.begin(), each.chosen.end());
    return all;
  };
  for (const DataFacts& facts : {wide_facts(), digits_facts()}) {
    Experiment recipe = recipe_for(facts);
    const std::vector<Reason> chosen = chosen_by(given(), facts);
    ASSERT_GT(chosen.size(), 10u);
    for (const Reason& each : chosen) {
      EXPECT_NE(each.reason, "") << each.key;
      const GivenKeys one = given({each.key + "=" + toml_value(*find_field(each.key), recipe)});
      EXPECT_EQ(std::ranges::count(chosen_by(one, facts), each.key, &Reason::key), 0) << each.key;
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
    const Experiment now = fitted.recipe.experiment;
    EXPECT_TRUE(fitted.fits) << seconds;
    EXPECT_LE(seconds_of(now, facts, pace, 10000), seconds);
    EXPECT_LT(seconds_of(now, facts, pace, 10000), before);
    before = seconds_of(now, facts, pace, 10000);
  }
  for (double seconds = usual / 30; seconds < 1.6 * usual; seconds *= 1.2) {
    const Fitted fitted = fit_to_time(given(), facts, kMachine, recipe, seconds, pace, 10000);
    EXPECT_GT(seconds_of(fitted.recipe.experiment, facts, pace, 10000), 0.6 * seconds) << seconds / usual;
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
    EXPECT_EQ(fitted.recipe.experiment.model.classifiers > 0, more >= 1) << more;
  }
  // If the width is given, only passes can be saved.
  const GivenKeys wide = given({"model.hidden=[1024]"});
  const Fitted fitted = fit_to_time(wide, facts, kMachine, recipe_for(facts, wide), usual / 1e6, pace, 10000);
  EXPECT_EQ(fitted.recipe.experiment.model.hidden[0], 1024u);
  EXPECT_EQ(fitted.recipe.experiment.train.epochs, 1u);
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
  const auto tries_softmax = [](const DataFacts& of, const char* key) {
    const GivenKeys open = given({key});
    return std::ranges::count(alternatives(open, of, recipe_for(of, open)), "loss softmax",
                              &Alternative::name);
  };
  EXPECT_EQ(tries_softmax(facts, "model.centroids=false"), 0);
  DataFacts rare = wide_facts();
  EXPECT_EQ(tries_softmax(rare, "model.classifiers=0"), 1);
  rare.rare_labels = rare.labels;
  EXPECT_EQ(tries_softmax(rare, "model.classifiers=0"), 0) << "trust in rare labels needs sigmoid";
}

TEST(Recipe, TimeForEveryWidthLeavesLessForTheWidth) {
  const DataFacts facts = wide_facts();
  const Experiment recipe = recipe_for(facts);
  ASSERT_GT(recipe.model.classifiers, 0.0f);
  constexpr Pace kPace{.train = {.per_cost = 1e-11}, .score = {.per_cost = 1e-11}};
  const double usual = seconds_of(recipe, facts, kPace, 10000), rows = static_cast<double>(facts.rows);
  const auto in_time = [&](const Pace& pace) {
    const Fitted fitted = fit_to_time(given(), facts, kMachine, recipe, usual, pace, 10000);
    const Experiment found = fitted.recipe.experiment;
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

TEST(Choose, SeveralNodesGetWhatTheyTrainSooner) {
  const auto chosen = [](bool faster, const GivenKeys& of) {
    FakeTrials trials;
    bool asked = false;
    const auto answer = [&](const Experiment& network, const Experiment& towers, const DataFacts&) {
      asked = true;
      EXPECT_EQ(network.model.towers, 1u);
      EXPECT_GT(towers.model.towers, 1u);
      return faster;
    };
    const Choice choice = choose_with(trials, of, {.nodes = 4, .towers_are_faster = answer});
    return std::pair(asked, choice.experiment.model.towers > 1);
  };
  EXPECT_EQ(chosen(true, given()), std::pair(true, true));
  EXPECT_EQ(chosen(false, given()), std::pair(true, false));
  EXPECT_EQ(chosen(true, given({"model.towers=1"})), std::pair(false, false));
  EXPECT_EQ(chosen(true, given({"model.loss=softmax"})), std::pair(false, false));
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

// A table of 1,000 records with two labels.
DataFacts small_table_facts() {
  DataFacts facts = digits_facts();
  facts.rows = 1000;
  facts.features = 200;
  facts.features_per_row = 10;
  facts.labels = 2;
  return facts;
}

GivenKeys given_table(std::vector<std::string> keys = {}) {
  keys.insert(keys.end(), {"data.format=columns", "columns.x=number", "columns.y=target"});
  return given(std::move(keys));
}

TEST(Choose, TrainsSmallTablesWhole) {
  const DataFacts facts = small_table_facts();
  const auto chosen_with = [&](FakeTrials& trials, const GivenKeys& of, const ChooseOptions& options = {}) {
    return choose(of, {}, facts, kMachine, options, trials);
  };
  FakeTrials trials;
  trials.seconds_per_trial = 1;  // no reason to leave any out
  trials.score = [](const Experiment& e) { return 0.7 + (e.table.bins == 8 ? 0.1 : 0) - e.train.epochs * 0.001; };
  const Choice choice = chosen_with(trials, given_table());
  EXPECT_EQ(choice.plan.repetitions, 5u);
  EXPECT_EQ(choice.plan.train_rows + choice.plan.held_out_rows, facts.rows);
  EXPECT_EQ(choice.trials.size(), 7u);
  EXPECT_EQ(trials.experiments.front().train.epochs, recipe_for(facts, given_table()).train.epochs) << "not shortened";
  EXPECT_EQ(choice.experiment.table.bins, 8u);
  EXPECT_LT(choice.experiment.train.epochs, trials.experiments.front().train.epochs);
  EXPECT_GT(choice.experiment.train.input_dropout, 0) << "as the rules say: it makes no difference";

  FakeTrials others;
  others.score = trials.score;
  const Choice with_given = chosen_with(others, given_table({"table.bins=32", "train.epochs=9"}));
  EXPECT_EQ(with_given.experiment.table.bins, 32u);
  EXPECT_EQ(with_given.experiment.train.epochs, 9u);
  EXPECT_EQ(with_given.trials.size(), 4u);

  FakeTrials none;
  EXPECT_TRUE(chosen_with(none, given_table(), {.trial_share = 0}).trials.empty());
  EXPECT_TRUE(chosen_with(none, given_table(), {.seconds = 100}).trials.empty());
  EXPECT_EQ(chosen_with(none, given()).plan.repetitions, 0u) << "not a table";
}

// The label follows from a feature that every other sample has.
TEST(DataTrials, WholeTrainingsAreJudgedByWhatTheyDidNotSee) {
  const std::string text = ::testing::TempDir() + "whole.txt", prepared = ::testing::TempDir() + "whole.mlt";
  std::ofstream out(text);
  out << "200 12 2\n";
  for (uint32_t row = 0; row < 200; ++row) out << row % 2 << ' ' << row % 2 << ":1 " << 2 + row / 2 % 10 << ":1\n";
  out.close();
  shard::prepare_data(text, Normalize::kNone, {}, prepared);
  const shard::Dataset data = shard::Dataset::open(prepared);
  int readings = 0;
  DataTrials trials(data, measure_facts(data), 1, {}, 32, [&](const Experiment&) {
    ++readings;
    return shard::Dataset::open(prepared);
  });
  TrialPlan plan;
  plan.repetitions = 2;
  plan.train_rows = 160;
  plan.held_out_rows = 40;
  const auto result = [&](std::vector<std::string> keys) {
    keys.insert(keys.end(), {"model.hidden=[16]", "modelets.hidden_columns=16", "sampling.mode=full", "train.batch=20",
                             "optimizer.kind=adam"});
    return trials.run(given(std::move(keys)).experiment, plan);
  };
  for (const std::string loss : {"model.loss=softmax", "model.loss=sigmoid"}) {
    const Trials::Result untrained = result({loss, "train.epochs=1", "train.learning_rate=1e-9"});
    EXPECT_LE(untrained.score, loss.ends_with("softmax") ? 0.6 : 0.36) << "as if guessed";
    const Trials::Result trained = result({loss, "train.epochs=10", "train.learning_rate=0.01"});
    EXPECT_GT(trained.score, 0.9);
    EXPECT_EQ(trained.p_at_1, 1);
  }
  EXPECT_EQ(readings, 0);
  // Labels that say nothing can be learned by heart only.
  std::ofstream by_heart(text);
  by_heart << "200 200 2\n";
  for (uint32_t row = 0; row < 200; ++row) by_heart << row * 7919 % 13 % 2 << ' ' << row << ":1\n";
  by_heart.close();
  shard::prepare_data(text, Normalize::kNone, {}, prepared);
  const shard::Dataset noise = shard::Dataset::open(prepared);
  DataTrials of_noise(noise, measure_facts(noise), 1);
  EXPECT_LT(of_noise.run(given({"model.hidden=[16]", "modelets.hidden_columns=16", "sampling.mode=full", "train.batch=20",
                                "train.epochs=60", "train.learning_rate=0.1", "model.loss=softmax"})
                             .experiment,
                         plan)
                .p_at_1,
            0.8);
  result({"table.bins=8", "train.epochs=1"});
  result({"table.bins=8", "train.epochs=2"});
  EXPECT_EQ(readings, 1);
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
      text,
      HasSubstr("loss = \"softmax\"  # labels compete for a sample; 70.0 instead of 50.0 in a trial\n"));
  const std::vector<std::string> lines = to_lines(choice);
  EXPECT_THAT(lines, Contains(HasSubstr("train.seed")));
  EXPECT_THAT(lines, Contains(HasSubstr("model.hidden = [1024] ")));
  EXPECT_THAT(lines, Contains(HasSubstr("model.precision = bf16 ")));
  for (const Reason& chosen : choice.chosen) {
    EXPECT_THAT(lines, Contains(HasSubstr("  " + chosen.key + " = ")));
    EXPECT_THAT(text, HasSubstr(chosen.reason));
  }
}

}  // namespace
}  // namespace modelet::agent
