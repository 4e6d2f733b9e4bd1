// Regimes: data sets are classed by their facts (data_facts.h), and each class has the settings that a study found best
// for it, a row of the table in regime.cc. docs/studies/recipes.md shows the same table. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "base/experiment/choices.h"
#include "node_agent/train/recipe/data_facts.h"

namespace modelet::agent {

inline constexpr uint64_t kFewSamples = 8000;     // up to so many, likely labels are rare as well
inline constexpr uint64_t kManySamples = 100000;  // more teach a wider layer more about rare labels
inline constexpr uint64_t kSeveralLabels = 16;    // with fewer, linear classifiers were not measured
inline constexpr uint64_t kManyLabels = 1000;  // with fewer, a hidden layer sees each often enough to know it

// Rare labels are in one or two samples. kRare: most labels that samples have are rare, and hardly any is frequent.
// kMixed: most are rare, but likely labels are frequent.
enum class Labels { kOfMeasurements, kFew, kSeveral, kFrequent, kMixed, kRare };
Labels labels_of(const DataFacts& facts);
bool short_samples(const DataFacts& facts);  // what they say about labels is doubtful

// A value for usual samples, for short ones, which leave much doubt about all labels, and for those of many labels.
struct BySamples {
  float usual = 1, short_samples = usual, many_labels = usual;

  float operator()(const DataFacts& facts) const;
};

// A wide layer is not needed beside a direct path: the widest for up to 100,000 samples, and for more.
struct Widest {
  uint32_t usual = UINT32_MAX, many_samples = UINT32_MAX;
  const char* reason = "";  // {}: labels of a sample
};

struct Regime {
  const char *name, *study;  // the section of docs/studies/recipes.md
  // What the data is like: a class, a loss (if given), and the most labels of a sample and samples.
  std::optional<Labels> labels;
  std::optional<Loss> loss;
  double labels_per_row = std::numeric_limits<double>::infinity();
  uint64_t rows = UINT64_MAX;
  // Its settings, if there is a direct path.
  BySamples classifiers = {}, rare_trust = {};
  Widest widest = {};
  uint32_t softmax_epochs = 9;  // beside classifiers; with sigmoid it is always 7
  float centroid_share = 0.8f, prior = 0.75f;
};

std::span<const Regime> regimes();
const Regime& regime_of(const DataFacts& facts, Loss loss);  // the first that holds

}  // namespace modelet::agent
