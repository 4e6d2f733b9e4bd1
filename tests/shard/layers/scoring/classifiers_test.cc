// The linear classifiers of labels compared with gradient descent in double precision, and what they add to scores.
#include "shard/layers/scoring/classifiers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/experiment/partition.h"
#include "base/rng.h"
#include "shard/data/batch/split.h"
#include "shard/data/store/prepared.h"
#include "shard/inference/evaluation.h"
#include "shard/layers/network.h"
#include "shard/layers/scoring/feature_index.h"
#include "shard/synth/synth.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

constexpr float kShare = 2;    // model.classifiers
constexpr double kCost = 0.5;  // of classifiers.cc, as are the doubt and the order of the terms
constexpr double kDoubt = 3;

class ClassifiersTest : public ::testing::Test {
 protected:
  ClassifiersTest() {
    write_synth({.rows_train = 300,
                 .rows_test = 40,
                 .features = 80,
                 .labels = 40,
                 .features_per_row = 9,
                 .labels_per_row = 2},
                folder_.path(), false);
    train_ = Dataset::open(folder_ / "train.mlt");
    test_ = Dataset::open(folder_ / "test.mlt");
    experiment_.model = {
        .hidden = {16}, .loss = Loss::kSigmoid, .centroids = true, .rare_trust = 0.5f, .classifiers = kShare};
    experiment_.modelets = {.hidden_columns = 16, .output_modelets = 2};
    shape_ = describe_shape(train_, test_);
    for (uint32_t row = 0; row < train_.rows(); ++row)
      if (row % 7 != 3) rows_.push_back(row);  // the others are held out
    network_ = make_network(2);
    // Mistakes at random: a row in four, for each label that it lacks.
    Rng rng(3);
    for (size_t m = 0; m < modelets().size(); ++m) {
      const ModeletSpec& spec = modelets()[m]->spec();
      std::vector<HardNegative>& mistakes = negatives_.emplace_back();
      for (uint32_t neuron = 0; neuron < spec.neurons(); ++neuron)
        for (const uint32_t row : rows_)
          if (!has(row, label_of(m, neuron)) && rng.below(4) == 0) mistakes.push_back({neuron, row});
    }
  }

  std::unique_ptr<Network> make_network(unsigned threads) {
    pools_.push_back(std::make_unique<ThreadPool>(threads));
    auto network = std::make_unique<Network>(experiment_, shape_, partition_model(experiment_, shape_), true,
                                             *pools_.back());
    network->initialise();
    network->build_pairs(train_, rows_);
    network->set_label_counts(count_labels(train_));
    return network;
  }
  const std::vector<Modelet*>& modelets() { return network_->output().modelets(); }
  uint32_t label_of(size_t modelet, size_t neuron) {
    return network_->spread().label(static_cast<uint32_t>(modelets()[modelet]->spec().begin + neuron));
  }
  bool has(uint32_t row, uint32_t label) const {
    return std::ranges::count(train_.sample(row).labels, label) > 0;
  }
  void fit(Network& network) {
    ClassifierSolvers solvers(train_, network.pool());
    for (size_t m = 0; m < negatives_.size(); ++m) {
      ClassifierFit fit(network.scoring(), m, train_, rows_, negatives_[m]);
      fit.fit(0, 7, solvers);
      fit.fit(7, network.output().modelets()[m]->spec().neurons(), solvers);
    }
  }

  void vote() {
    ClassifierSolvers solvers(train_, network_->pool());
    const std::vector<float> weights = vote_weights(train_, rows_);
    for (size_t m = 0; m < modelets().size(); ++m) {
      ClassifierFit fit(network_->scoring(), m, train_, rows_, {});
      fit.vote(0, 7, weights, solvers);
      fit.vote(7, modelets()[m]->spec().neurons(), weights, solvers);
    }
  }
  // [labels, features] the votes of rows_, in the plainest way.
  std::vector<double> plain_votes() const {
    std::vector<double> sums(shape_.features), votes(shape_.labels * shape_.features);
    const auto for_each_value = [&](const auto& use) {
      for (const uint32_t row : rows_) {
        const Sample sample = train_.sample(row);
        for (size_t i = 0; i < sample.features.size(); ++i) use(sample, sample.features[i], double{sample.values[i]});
      }
    };
    for_each_value([&](const Sample&, uint32_t feature, double value) { sums[feature] += value; });
    for_each_value([&](const Sample& sample, uint32_t feature, double value) {
      for (const uint32_t label : sample.labels) votes[label * shape_.features + feature] += value / std::pow(sums[feature] + 1, 0.6);
    });
    return votes;
  }
  void expect_votes(const std::vector<double>& votes) {
    for (size_t m = 0; m < modelets().size(); ++m)
      for (uint32_t neuron = 0; neuron < modelets()[m]->spec().neurons(); ++neuron) {
        const std::span<const uint32_t> features = modelets()[m]->direct()->pairs.features(neuron);
        const std::vector<double> weights = fitted(m, neuron);
        for (size_t i = 0; i < features.size(); ++i)
          EXPECT_NEAR(weights[i], votes[label_of(m, neuron) * shape_.features + features[i]], 1e-4);
        EXPECT_NEAR(weights.back(), 0, 1e-5);
      }
  }

  // One label's problem: dense samples of its features, of length one in all features, then a 1. Weights are drawn to
  // `start`.
  struct Problem {
    std::vector<std::vector<double>> samples;
    std::vector<double> signs, start;

    double margin(const std::vector<double>& weights, size_t i) const {
      double sum = -kDoubt;
      for (size_t f = 0; f < weights.size(); ++f) sum += weights[f] * samples[i][f];
      return sum;
    }
    double objective(const std::vector<double>& weights) const {
      double sum = 0;
      for (size_t f = 0; f < weights.size(); ++f) sum += std::pow(weights[f] - start[f], 2) / 2;
      for (size_t i = 0; i < samples.size(); ++i)
        sum += kCost * std::pow(std::max(0.0, 1 - signs[i] * margin(weights, i)), 2);
      return sum;
    }
    std::vector<double> minimise() const {
      std::vector<double> weights = start;
      const double rate =
          1 / (1 + 4 * kCost * static_cast<double>(samples.size()));  // 1 / a bound of the curvature
      for (int step = 0; step < 3000; ++step) {
        std::vector<double> gradient(weights.size());
        for (size_t f = 0; f < weights.size(); ++f) gradient[f] = weights[f] - start[f];
        for (size_t i = 0; i < samples.size(); ++i) {
          const double slack = std::max(0.0, 1 - signs[i] * margin(weights, i));
          for (size_t f = 0; f < weights.size(); ++f)
            gradient[f] -= 2 * kCost * signs[i] * slack * samples[i][f];
        }
        for (size_t f = 0; f < weights.size(); ++f) weights[f] -= rate * gradient[f];
      }
      return weights;
    }
  };
  Problem problem_of(size_t modelet, uint32_t neuron) {
    const std::span<const uint32_t> features = modelets()[modelet]->direct()->pairs.features(neuron);
    Problem problem;
    problem.start.resize(features.size() + 1);
    const auto add = [&](uint32_t row, double sign) {
      const Sample sample = train_.sample(row);
      double squares = 0;
      std::vector<double> dense(features.size() + 1);
      for (size_t i = 0; i < sample.features.size(); ++i) {
        squares += double{sample.values[i]} * sample.values[i];
        const auto place = std::ranges::lower_bound(features, sample.features[i]);
        if (place != features.end() && *place == sample.features[i])
          dense[static_cast<size_t>(place - features.begin())] = sample.values[i];
      }
      for (double& value : dense) value /= std::sqrt(squares);
      dense.back() = 1;
      problem.samples.push_back(std::move(dense));
      problem.signs.push_back(sign);
    };
    for (const uint32_t row : rows_)
      if (has(row, label_of(modelet, neuron))) add(row, 1);
    for (const auto& [of, row] : negatives_[modelet])
      if (of == neuron) add(row, -1);
    return problem;
  }
  // Weights and bias as they were fitted.
  std::vector<double> fitted(size_t modelet, uint32_t neuron) {
    const Direct& direct = *modelets()[modelet]->direct();
    std::vector<double> weights;
    for (const float weight : direct.pairs.of_row(std::span(direct.classifiers->weights), neuron))
      weights.push_back(weight * network_->scoring().factor({modelet, neuron}) / kShare);
    weights.push_back(direct.classifiers->biases[neuron] / kShare + kDoubt);
    return weights;
  }

  testing::TemporaryFolder folder_;
  Dataset train_, test_;
  Experiment experiment_;
  DataShape shape_;
  std::vector<uint32_t> rows_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::unique_ptr<Network> network_;
  std::vector<std::vector<HardNegative>> negatives_;  // of each output modelet
};

TEST_F(ClassifiersTest, MinimiseTheirObjective) {
  fit(*network_);
  size_t rare = 0;
  for (size_t m = 0; m < modelets().size(); ++m)
    for (uint32_t neuron = 0; neuron < modelets()[m]->spec().neurons(); ++neuron) {
      const Problem problem = problem_of(m, neuron);
      rare += network_->scoring().factor({m, neuron}) < 0.9f ? 1 : 0;
      const std::vector<double> weights = fitted(m, neuron), best = problem.minimise();
      EXPECT_LE(problem.objective(weights), 1.02 * problem.objective(best)) << "neuron " << neuron;
      if (std::ranges::count(problem.signs, 1.0) > 0) {
        EXPECT_LT(problem.objective(best), 0.9 * problem.objective(std::vector<double>(best.size())));
      }
      for (size_t i = 0; i < problem.samples.size(); ++i)
        EXPECT_NEAR(problem.margin(weights, i), problem.margin(best, i), 0.25) << "neuron " << neuron;
    }
  EXPECT_GT(rare, 0u) << "no label whose logits are scaled";
}

// The model goes on with the rows that were held out, which bring pairs of their own and other counts of labels.
TEST_F(ClassifiersTest, BeginWithThoseOfEarlierSamples) {
  fit(*network_);
  const auto place = [](size_t modelet, uint32_t neuron, uint32_t feature) {
    return std::tuple(modelet, neuron, feature);
  };
  std::map<std::tuple<size_t, uint32_t, uint32_t>, double> earlier;
  constexpr uint32_t kBias = ~uint32_t{0};
  for (size_t m = 0; m < modelets().size(); ++m)
    for (uint32_t neuron = 0; neuron < modelets()[m]->spec().neurons(); ++neuron) {
      const std::vector<double> weights = fitted(m, neuron);
      const std::span<const uint32_t> features = modelets()[m]->direct()->pairs.features(neuron);
      for (size_t i = 0; i < features.size(); ++i) earlier[place(m, neuron, features[i])] = weights[i];
      earlier[place(m, neuron, kBias)] = weights.back();
    }
  const std::vector<uint32_t> before = std::exchange(rows_, {});
  for (uint32_t row = 3; row < train_.rows(); row += 7) rows_.push_back(row);
  for (size_t m = 0; m < negatives_.size(); ++m) {
    for (HardNegative& mistake : negatives_[m]) mistake.row = mistake.row / 7 * 7 + 3;
    std::erase_if(negatives_[m], [&](const HardNegative& mistake) {
      return mistake.neuron % 3 == 0 || has(mistake.row, label_of(m, mistake.neuron));
    });
  }
  const size_t pairs = modelets()[0]->direct()->pairs.size();
  network_->add_samples(train_, rows_, before.size());
  EXPECT_GT(modelets()[0]->direct()->pairs.size(), pairs);
  fit(*network_);
  size_t unchanged = 0;
  for (size_t m = 0; m < modelets().size(); ++m)
    for (uint32_t neuron = 0; neuron < modelets()[m]->spec().neurons(); ++neuron) {
      Problem problem = problem_of(m, neuron);
      const std::span<const uint32_t> features = modelets()[m]->direct()->pairs.features(neuron);
      for (size_t i = 0; i < features.size(); ++i) problem.start[i] = earlier[place(m, neuron, features[i])];
      problem.start.back() = earlier[place(m, neuron, kBias)];
      const std::vector<double> weights = fitted(m, neuron);
      if (problem.samples.empty()) {
        for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights[i], problem.start[i], 1e-4);
        ++unchanged;
        continue;
      }
      const std::vector<double> best = problem.minimise();
      EXPECT_LE(problem.objective(weights), 1.02 * problem.objective(best) + 1e-3) << "neuron " << neuron;
      for (size_t i = 0; i < problem.samples.size(); ++i)
        EXPECT_NEAR(problem.margin(weights, i), problem.margin(best, i), 0.25) << "neuron " << neuron;
    }
  EXPECT_GT(unchanged, 0u) << "no label without samples";
}

TEST_F(ClassifiersTest, VotesAreAddedUp) {
  vote();
  std::vector<double> votes = plain_votes();
  expect_votes(votes);
  const size_t before = rows_.size();
  rows_.clear();
  for (uint32_t row = 3; row < train_.rows(); row += 7) rows_.push_back(row);
  network_->add_samples(train_, rows_, before);
  vote();
  std::ranges::transform(votes, plain_votes(), votes.begin(), std::plus<>());
  expect_votes(votes);
}

TEST_F(ClassifiersTest, ThatWereNotFittedYetAreNothingToBeginWith) {
  const auto other = make_network(2);
  keep_classifiers(other->scoring());
  fit(*network_);
  fit(*other);
  for (size_t m = 0; m < modelets().size(); ++m) {
    const Classifiers &a = *modelets()[m]->direct()->classifiers,
                      &b = *other->output().modelets()[m]->direct()->classifiers;
    EXPECT_TRUE(std::ranges::equal(a.weights, b.weights));
    EXPECT_EQ(a.biases, b.biases);
  }
}

TEST_F(ClassifiersTest, DependNeitherOnTheOrderOfMistakesNorOnThreads) {
  fit(*network_);
  const auto other = make_network(3);
  for (std::vector<HardNegative>& mistakes : negatives_) std::ranges::reverse(mistakes);
  fit(*other);
  for (size_t m = 0; m < modelets().size(); ++m) {
    const Classifiers &a = *modelets()[m]->direct()->classifiers,
                      &b = *other->output().modelets()[m]->direct()->classifiers;
    EXPECT_TRUE(std::ranges::equal(a.weights, b.weights));
    EXPECT_EQ(a.biases, b.biases);
  }
}

TEST_F(ClassifiersTest, AddTheirMarginToScoresInBatchesAndForSingleQueries) {
  Batch batch;
  batch.assign(test_, all_rows(test_.rows()), true);
  const size_t columns = padded(batch.size());
  const AlignedVector<float> hidden(16 * columns, 0.3f);
  std::vector<float> before(batch.size() * shape_.labels), after(before.size());
  LabelRanker ranker(network_->scoring(), *pools_[0]);
  const auto score = [&](std::vector<float>& scores) {
    ranker.score_dense({hidden.data(), 16, columns, columns}, batch.size(), scores.data(), &batch);
  };
  score(before);
  const FeatureIndex without(network_->scoring());
  fit(*network_);
  score(after);
  const FeatureIndex with(network_->scoring());
  for (size_t m = 0; m < modelets().size(); ++m)
    for (uint32_t neuron = 0; neuron < modelets()[m]->spec().neurons(); ++neuron) {
      const std::span<const uint32_t> features = modelets()[m]->direct()->pairs.features(neuron);
      const std::vector<double> weights = fitted(m, neuron);
      const float factor = network_->scoring().factor({m, neuron}),
                  bias = modelets()[m]->direct()->classifiers->biases[neuron];
      for (size_t s = 0; s < batch.size(); ++s) {
        const Sample sample = test_.sample(s);
        double sum = 0, squares = 0;
        for (size_t i = 0; i < sample.features.size(); ++i) {
          squares += double{sample.values[i]} * sample.values[i];
          const auto place = std::ranges::lower_bound(features, sample.features[i]);
          if (place != features.end() && *place == sample.features[i])
            sum += weights[static_cast<size_t>(place - features.begin())] * sample.values[i];
        }
        const double margin = sum / std::sqrt(squares) + weights.back() - kDoubt;
        const size_t at = s * shape_.labels + label_of(m, neuron);
        EXPECT_NEAR(after[at] - before[at], kShare * margin, 2e-3);
        std::vector<float> old_sums(shape_.labels), new_sums(shape_.labels);
        without.add_to({sample, nullptr}, old_sums.data());
        with.add_to({sample, nullptr}, new_sums.data());
        const size_t place = modelets()[m]->spec().begin + neuron;
        EXPECT_NEAR(factor * (new_sums[place] - old_sums[place]) + bias, kShare * margin, 2e-3);
      }
    }
  clear_classifiers(network_->scoring());
  std::vector<float> again(before.size());
  score(again);
  EXPECT_EQ(again, before);
}

}  // namespace
}  // namespace modelet::shard
