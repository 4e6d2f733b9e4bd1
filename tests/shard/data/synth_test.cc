#include "shard/data/synth.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/error.h"
#include "base/rng.h"
#include "tests/shard/data/data_testing.h"

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
  // The text is the same data, to the last bit.
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

// Nearest prototype: a label's prototype is the sum of its training rows. P@1 on the test rows.
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
  EXPECT_THROW(synth_preset("amazon"), UsageError);
}

}  // namespace
}  // namespace modelet::shard
