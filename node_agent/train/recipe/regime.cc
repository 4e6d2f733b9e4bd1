#include "node_agent/train/recipe/regime.h"

#include <algorithm>

namespace modelet::agent {
namespace {

using enum Labels;

constexpr double kFewFeatures = 5, kFewLabels = 4, kMeasuredLabels = 8;  // of a sample
constexpr Widest kForOneLabel = {256, 256, " with one label each, and a direct path for rare ones"};
constexpr Widest kForFewLabels = {512, 768, " with {:.1f} labels in the mean, and a direct path"};
constexpr Widest kForRareLabels = {.usual = 768, .reason = ", and a direct path for rare labels"};

constexpr auto kSigmoid = Loss::kSigmoid, kSoftmax = Loss::kSoftmax;
constexpr std::nullopt_t kAny = std::nullopt;
constexpr double kAll = std::numeric_limits<double>::infinity();
constexpr uint64_t kAllRows = UINT64_MAX;

// Trust (model.rare_trust) keeps too confident scores of rare labels from displacing likely frequent ones. Without
// frequent labels it only spoils the order of the rare ones.
// A row: name and study; labels, loss, and the most labels of a sample and samples; then the settings.
// clang-format off
constexpr Regime kRegimes[] = {
    {"measurements", "Width, dropout and the metric", kOfMeasurements},
    {"few labels", "Larger steps and few labels", kFew},
    {"several labels, few a sample", "Few labels a sample",
     kSeveral,  kSigmoid, kFewLabels, 250000,      {4},             {},            kForFewLabels},
    {"several labels", "Larger steps and few labels",
     kSeveral,  kAny,     kAll,       kAllRows,    {4}},
    {"one of many labels", "Draws, samples with one label, and short samples",
     kAny,      kSoftmax, kAll,       200000,      {2.5f},          {},            kForOneLabel,   7},
    {"one of many frequent labels", "Draws, samples with one label, and short samples",
     kFrequent, kSoftmax, kAll,       kAllRows,    {2.5f}},
    {"frequent labels, few a sample", "Few labels a sample",
     kFrequent, kSigmoid, kFewLabels, 250000,      {4, 2.5f},       {},            kForFewLabels},
    {"frequent labels", "What few samples need",
     kFrequent, kSigmoid, kAll,       kAllRows,    {4, 2.5f, 2.5f}},
    {"rare beside frequent labels, few samples", "What few samples need",
     kMixed,    kSigmoid, kAll,       kFewSamples, {3, 2.5f, 2.5f}, {0.7f}},
    {"rare beside frequent labels", "Draws, samples with one label, and short samples",
     kMixed,    kSigmoid, kAll,       kAllRows,    {1.5f, 1},       {0.25f, 0.5f}, kForRareLabels, 7, 0.9f, 0.9f},
    {"rare labels, few samples", "What few samples need",
     kRare,     kSigmoid, kAll,       kFewSamples, {3, 2.5f, 2.5f}},
    {"rare labels", "Sets of other shapes",
     kAny,      kAny,     kAll,       kAllRows,    {2.5f},          {},            kForRareLabels, 7},
};
// clang-format on

}  // namespace

Labels labels_of(const DataFacts& facts) {
  constexpr double kOften = 0.1;
  if (facts.dense()) return kOfMeasurements;
  if (facts.labels < kSeveralLabels && !facts.own_excluded) return kFew;
  if (facts.labels < kManyLabels) return kSeveral;
  if (facts.rare_labels <= (facts.labels - facts.unseen_labels) / 2) return kFrequent;
  return facts.often_share > kOften ? kMixed : kRare;
}

bool short_samples(const DataFacts& facts) { return facts.features_per_row < kFewFeatures; }

float BySamples::operator()(const DataFacts& facts) const {
  if (agent::short_samples(facts)) return short_samples;
  return facts.labels_per_row > kMeasuredLabels ? many_labels : usual;
}

std::span<const Regime> regimes() { return kRegimes; }

const Regime& regime_of(const DataFacts& facts, Loss loss) {
  return *std::ranges::find_if(kRegimes, [&](const Regime& each) {
    return each.labels.value_or(labels_of(facts)) == labels_of(facts) && each.loss.value_or(loss) == loss &&
           facts.labels_per_row < each.labels_per_row && facts.rows <= each.rows;
  });
}

}  // namespace modelet::agent
