#include "shard/layers/scoring/classifiers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "shard/data/batch/split.h"
#include "shard/data/pairs/per_feature.h"

namespace modelet::shard {
namespace {

constexpr float kCost = 0.5f;
constexpr float kDoubt = 3;
constexpr int kMostPasses = 20;
constexpr float kConverged = 0.1f;  // largest projected gradient of a pass that ends a fit
constexpr size_t kLabelsTogether = 16;

}  // namespace

// Minimises the objective of one label by dual coordinate descent (Hsieh et al., "A dual coordinate descent method
// for large-scale linear SVM", ICML 2008, algorithm 1, squared hinge). For one thread; keeps its memory.
class ClassifierSolvers::Solver {
 public:
  explicit Solver(const Dataset& data) : data_(data), places_(data.features()) {}

  // Where the fit begins, which is also the solution if there are no samples.
  void begin(size_t features) {
    weights_.assign(features, 0.0f);
    bias_ = 0;
  }
  void begin(std::span<const float> weights, float bias) {
    weights_.assign(weights.begin(), weights.end());
    bias_ = bias;
  }

  // `features`: those that have a weight. `rng` draws the order in which samples are visited. begin() comes before.
  void fit(std::span<const uint32_t> positives, std::span<const uint32_t> negatives,
           std::span<const uint32_t> features, Rng rng) {
    gather(positives, negatives, features);
    for (int pass = 0; pass < kMostPasses; ++pass) {
      for (size_t i = examples_.size(); i > 1; --i)
        std::swap(examples_[i - 1], examples_[rng.below(static_cast<uint32_t>(i))]);
      float largest = 0;
      for (Example& example : examples_) largest = std::max(largest, improve(example));
      if (largest < kConverged) break;
    }
  }
  std::span<const float> weights() const { return weights_; }  // of `features`, in their order
  float bias() const { return bias_; }

 private:
  static constexpr float kRidge = 0.5f / kCost;  // what squared slack adds to the dual's diagonal

  struct Entry {
    uint32_t place;  // in weights_
    float value;     // of the sample of length one
  };
  struct Example {
    size_t first, count;  // in entries_
    float sign;
    float diagonal;  // of the dual: the squares of the entries, of the bias, and kRidge
    float dual = 0;
  };

  void gather(std::span<const uint32_t> positives, std::span<const uint32_t> negatives,
              std::span<const uint32_t> features) {
    for (size_t i = 0; i < features.size(); ++i) places_[features[i]] = static_cast<uint32_t>(i + 1);
    entries_.clear();
    examples_.clear();
    for (const uint32_t row : positives) add(data_.sample(row), 1);
    for (const uint32_t row : negatives) add(data_.sample(row), -1);
    for (const uint32_t feature : features) places_[feature] = 0;
  }

  void add(const Sample& sample, float sign) {
    double squares = 0;
    float used = 0;
    const size_t first = entries_.size();
    for (size_t i = 0; i < sample.features.size(); ++i) {
      const float value = sample.values[i];
      squares += double{value} * value;
      if (const uint32_t place = places_[sample.features[i]]; place != 0)
        entries_.push_back({place - 1, value});
    }
    const float scale = inverse_length(squares);
    if (scale == 0) return;
    for (size_t i = first; i < entries_.size(); ++i) {
      entries_[i].value *= scale;
      used += entries_[i].value * entries_[i].value;
    }
    examples_.push_back({first, entries_.size() - first, sign, used + 1 + kRidge});
  }

  // One coordinate of the dual; the size of its projected gradient.
  float improve(Example& example) {
    const std::span<const Entry> entries = std::span(entries_).subspan(example.first, example.count);
    float margin = bias_ - kDoubt;
    for (const Entry& entry : entries) margin += weights_[entry.place] * entry.value;
    const float gradient = example.sign * margin - 1 + example.dual * kRidge;
    const float projected = example.dual == 0 ? std::min(gradient, 0.0f) : gradient;
    if (projected == 0) return 0;
    const float dual = std::max(0.0f, example.dual - gradient / example.diagonal);
    const float change = (dual - example.dual) * example.sign;
    example.dual = dual;
    bias_ += change;
    for (const Entry& entry : entries) weights_[entry.place] += change * entry.value;
    return std::abs(projected);
  }

  const Dataset& data_;
  PerFeature<uint32_t> places_;  // in weights_, from 1
  std::vector<float> weights_;
  float bias_ = 0;
  std::vector<Entry> entries_;
  std::vector<Example> examples_;
};

ClassifierSolvers::ClassifierSolvers(const Dataset& data, ThreadPool& pool)
    : data_(data), pool_(pool), solvers_(pool.threads()) {}
ClassifierSolvers::~ClassifierSolvers() = default;

ClassifierSolvers::Solver& ClassifierSolvers::of_this_thread() {
  std::unique_ptr<Solver>& solver = solvers_[pool_.thread_index()];
  if (solver == nullptr) solver = std::make_unique<Solver>(data_);
  return *solver;
}

void clear_classifiers(Modelet& modelet) { modelet.direct()->pairs.clear_classifiers(); }

bool has_fitted_classifiers(Modelet& modelet) {
  return std::ranges::any_of(modelet.direct()->pairs.classifier_biases(),
                             [](float bias) { return bias != 0; });
}

void keep_classifiers(Modelet& modelet) {
  const Pairs& pairs = modelet.direct()->pairs;
  const float share = pairs.options().classifiers;
  if (!has_fitted_classifiers(modelet)) return;
  Classifiers& earlier = modelet.direct()->earlier;
  earlier.weights.assign(pairs.classifiers().begin(), pairs.classifiers().end());
  earlier.biases.clear();
  for (size_t row = 0; row < pairs.neurons(); ++row) {
    const float factor = modelet.score_factor(row) / share;
    for (uint64_t i = pairs.offsets()[row]; i < pairs.offsets()[row + 1]; ++i) earlier.weights[i] *= factor;
    earlier.biases.push_back(pairs.classifier_bias(row) / share + kDoubt);
  }
}

ClassifierFit::ClassifierFit(Modelet& modelet, const Dataset& data, std::span<const uint32_t> rows,
                             const LabelSpread& spread, std::span<const HardNegative> negatives)
    : modelet_(modelet),
      positives_(RowLists::by_label(data, rows, spread, modelet.spec().begin, modelet.spec().neurons())),
      negatives_(modelet.spec().neurons(), [&](const auto& use) {
        for (const auto& [neuron, row] : negatives) use(neuron, row);
      }) {}

void ClassifierFit::fit(size_t begin, size_t end, ClassifierSolvers& solvers) {
  Pairs& pairs = modelet_.direct()->pairs;
  const float share = pairs.options().classifiers;
  const Classifiers& earlier = modelet_.direct()->earlier;
  solvers.pool_.for_pieces(end - begin, kLabelsTogether, [&](size_t first, size_t last) {
    ClassifierSolvers::Solver& solver = solvers.of_this_thread();
    for (size_t row = begin + first; row < begin + last; ++row) {
      const std::span<const uint32_t> positives = positives_.of(row);
      std::vector<uint32_t> negatives(negatives_.of(row).begin(), negatives_.of(row).end());
      std::ranges::sort(negatives);
      if (earlier.biases.empty())
        solver.begin(pairs.features(row).size());
      else
        solver.begin(std::span(earlier.weights).subspan(pairs.offsets()[row], pairs.features(row).size()),
                     earlier.biases[row]);
      solver.fit(spread_out(positives, std::min(positives.size(), kMostPositives)), negatives,
                 pairs.features(row), Rng(0, {kStreamClassifiers, modelet_.spec().begin + row}));
      pairs.set_classifier(row, solver.weights(), share / modelet_.score_factor(row),
                           share * (solver.bias() - kDoubt));
    }
  });
}

}  // namespace modelet::shard
