#include "shard/synth/synth.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/rng.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using testing::bytes_of;
using testing::OwnedSample;

SynthOptions small() {
  SynthOptions options;
  options.rows_train = 3000;
  options.rows_test = 300;
  options.features = 2000;
  options.labels = 300;
  options.features_per_row = 30;
  options.labels_per_row = 2;
  return options;
}

TEST(Synth, RowsDoNotDependOnTheOrderTheyAreMadeIn) {
  SynthGenerator forwards(small()), backwards(small());
  std::vector<OwnedSample> rows;
  for (uint64_t row = 0; row < 100; ++row) rows.emplace_back(forwards.sample(Split::kTrain, row));
  for (uint64_t row = 100; row-- > 0;) {
    EXPECT_FALSE(OwnedSample(backwards.sample(Split::kTest, row)) == rows[row]);
    EXPECT_TRUE(OwnedSample(backwards.sample(Split::kTrain, row)) == rows[row]);
  }
}

TEST(Synth, FilesAreAFunctionOfTheOptions) {
  const testing::TemporaryFolder folder;
  SynthOptions options = small();
  write_synth(options, folder / "a", true);
  write_synth(options, folder / "b", false);
  options.seed = 2;
  write_synth(options, folder / "c", false);
  EXPECT_EQ(bytes_of(folder / "a/train.mlt"), bytes_of(folder / "b/train.mlt"));
  EXPECT_EQ(bytes_of(folder / "a/test.mlt"), bytes_of(folder / "b/test.mlt"));
  EXPECT_NE(bytes_of(folder / "a/train.mlt"), bytes_of(folder / "c/train.mlt"));
  // The text contains the same data, to the last bit.
  EXPECT_EQ(testing::read_all(XmcReader(folder / "a/train.txt")),
            testing::samples_of(Dataset::open(folder / "a/train.mlt")));
}

TEST(Synth, HasTheShapeAskedFor) {
  const SynthOptions options = small();
  SynthGenerator generator(options);
  double features = 0, labels = 0;
  for (uint64_t row = 0; row < options.rows_train; ++row) {
    const Sample sample = generator.sample(Split::kTrain, row);
    features += static_cast<double>(sample.features.size());
    labels += static_cast<double>(sample.labels.size());
    double squares = 0;
    for (const float value : sample.values) {
      EXPECT_GT(value, 0);
      squares += double{value} * double{value};
    }
    EXPECT_NEAR(squares, 1, 1e-5);
  }
  const auto rows = static_cast<double>(options.rows_train);
  EXPECT_NEAR(features / rows, options.features_per_row, 1.5);
  EXPECT_NEAR(labels / rows, options.labels_per_row, 0.15);
}

TEST(Synth, ZipfTableFollowsItsLaw) {
  const ZipfTable law(1000, 0.8);
  double norm = 0;
  for (int i = 1; i <= 1000; ++i) norm += std::pow(i, -0.8);
  constexpr int kDraws = 1'000'000;
  std::vector<int> counts(1000);
  for (int i = 0; i < kDraws; ++i)
    ++counts[law.rank((i + 0.5) / kDraws)];  // evenly spread: no sampling noise
  for (int i = 0; i < 1000; ++i) EXPECT_NEAR(counts[i], kDraws * std::pow(i + 1, -0.8) / norm, 1.5) << i;
  EXPECT_EQ(law.rank(0), 0u);
  EXPECT_EQ(law.rank(std::nextafter(1.0, 0.0)), 999u);
}

// P@1 on the test rows of a nearest-prototype classifier: the prototype of a label is the sum of its training
// rows.
double precision_of_prototypes(const SynthOptions& options) {
  SynthGenerator generator(options);
  std::vector<std::unordered_map<uint32_t, float>> prototypes(options.labels);
  for (uint64_t row = 0; row < options.rows_train; ++row) {
    const Sample sample = generator.sample(Split::kTrain, row);
    for (const uint32_t label : sample.labels)
      for (size_t i = 0; i < sample.features.size(); ++i)
        prototypes[label][sample.features[i]] += sample.values[i];
  }
  std::vector<float> lengths(options.labels);
  for (size_t label = 0; label < options.labels; ++label)
    for (const auto& [feature, value] : prototypes[label]) lengths[label] += value * value;
  double hits = 0;
  for (uint64_t row = 0; row < options.rows_test; ++row) {
    const Sample sample = generator.sample(Split::kTest, row);
    double best = -1;
    uint32_t best_label = 0;
    for (uint32_t label = 0; label < options.labels; ++label) {
      double score = 0;
      for (size_t i = 0; i < sample.features.size(); ++i) {
        const auto found = prototypes[label].find(sample.features[i]);
        if (found != prototypes[label].end()) score += double{sample.values[i]} * double{found->second};
      }
      if (lengths[label] > 0) score /= std::sqrt(lengths[label]);
      if (score > best) {
        best = score;
        best_label = label;
      }
    }
    hits += std::ranges::binary_search(sample.labels, best_label);
  }
  return hits / static_cast<double>(options.rows_test);
}

TEST(Synth, CanBeLearned) {
  SynthOptions options = small();
  EXPECT_GT(precision_of_prototypes(options), 0.8);
  options.noise = 1;  // nothing to learn but frequencies
  EXPECT_LT(precision_of_prototypes(options), 0.4);
}

// Labels of a family have most features in common, other labels hardly any. Without families nothing changes.
TEST(Synth, FamiliesShareFeatures) {
  SynthOptions options = small();
  options.labels_per_row = 1;
  options.noise = 0;
  options.features = 20000;
  const auto features_of = [](const SynthOptions& made) {
    SynthGenerator generator(made);
    std::vector<std::set<uint32_t>> sets(made.labels);
    for (uint64_t row = 0; row < made.rows_train; ++row) {
      const Sample sample = generator.sample(Split::kTrain, row);
      if (sample.labels.size() == 1)
        sets[sample.labels[0]].insert(sample.features.begin(), sample.features.end());
    }
    return sets;
  };
  // Over frequent labels, the mean share of a label's features that the label `apart` ids away also has.
  const auto overlap = [](const std::vector<std::set<uint32_t>>& sets, size_t apart) {
    double sum = 0, count = 0;
    for (size_t label = 0; label + apart < sets.size(); label += 10) {
      const auto &a = sets[label], &b = sets[label + apart];
      if (a.size() < 40 || b.size() < 40) continue;
      sum += static_cast<double>(std::ranges::count_if(a, [&](uint32_t f) { return b.contains(f); })) /
             static_cast<double>(a.size());
      ++count;
    }
    EXPECT_GT(count, 2);
    return sum / count;
  };
  options.family = 10;
  options.shared = 0.7;
  const auto families = features_of(options);
  EXPECT_NEAR(overlap(families, 1), 0.7, 0.15);
  EXPECT_LT(overlap(families, 10), 0.1);
  options.family = 1;
  EXPECT_LT(overlap(features_of(options), 1), 0.1);
}

TEST(Synth, RefusesShapesThatMakeNoSense) {
  const auto refused = [](auto change) {
    SynthOptions options = small();
    change(options);
    EXPECT_THROW(validate(options), UsageError);
  };
  EXPECT_NO_THROW(validate(small()));
  EXPECT_NO_THROW(validate(synth_preset("amazon-670k")));
  refused([](SynthOptions& o) { o.features = 0; });
  refused([](SynthOptions& o) { o.labels = uint64_t{1} << 31; });
  refused([](SynthOptions& o) { o.rows_test = 0; });
  refused([](SynthOptions& o) { o.features_per_row = 1001; });
  refused([](SynthOptions& o) { o.labels_per_row = 0.5; });
  refused([](SynthOptions& o) { o.zipf = std::nan(""); });
  refused([](SynthOptions& o) { o.noise = -0.1; });
  refused([](SynthOptions& o) { o.family = 0; });
  refused([](SynthOptions& o) { o.family = o.labels + 1; });
  refused([](SynthOptions& o) { o.shared = 1; });
  EXPECT_NO_THROW(validate(synth_preset("confusable")));
  EXPECT_THROW(synth_preset("amazon"), UsageError);
}

}  // namespace
}  // namespace modelet::shard
