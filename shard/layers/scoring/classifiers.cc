#include "shard/layers/scoring/classifiers.h"

#include <algorithm>
#include <cmath>
#include <utility>
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
  // Adds the votes of samples; `of_feature`: how much those of each feature count.
  void vote(std::span<const uint32_t> positives, std::span<const uint32_t> features,
            std::span<const float> of_feature) {
    for (size_t i = 0; i < features.size(); ++i) places_[features[i]] = static_cast<uint32_t>(i + 1);
    for (const uint32_t row : positives) {
      const Sample sample = data_.sample(row);
      for (size_t i = 0; i < sample.features.size(); ++i)
        if (const uint32_t place = places_[sample.features[i]]; place != 0)
          weights_[place - 1] += sample.values[i] * of_feature[sample.features[i]];
    }
    for (const uint32_t feature : features) places_[feature] = 0;
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

void clear_classifiers(const Scoring& scoring) {
  for (Modelet* modelet : scoring.modelets())
    modelet->direct()->classifiers = Classifiers::none(modelet->direct()->pairs);
}

bool has_fitted_classifiers(const Scoring& scoring) {
  return std::ranges::any_of(scoring.modelets(), [](Modelet* modelet) {
    const Direct* const direct = modelet->direct();
    return direct != nullptr && direct->classifiers && direct->classifiers->fitted();
  });
}

void keep_classifiers(const Scoring& scoring) {
  const float share = scoring.settings().classifiers;
  for (size_t m = 0; m < scoring.modelets().size(); ++m) {
    Direct* const direct = scoring.modelets()[m]->direct();
    if (direct == nullptr || !direct->classifiers || !direct->classifiers->fitted()) continue;
    Classifiers& earlier = direct->earlier = *direct->classifiers;
    for (size_t row = 0; row < direct->pairs.neurons(); ++row) {
      const float factor = scoring.factor({m, row}) / share;
      for (float& weight : direct->pairs.of_row(std::span(earlier.weights), row)) weight *= factor;
      earlier.biases[row] = earlier.biases[row] / share + kDoubt;
    }
  }
}

ClassifierFit::ClassifierFit(const Scoring& scoring, size_t modelet, const Dataset& data,
                             std::span<const uint32_t> rows, std::span<const HardNegative> negatives)
    : scoring_(scoring),
      modelet_(modelet),
      positives_(RowLists::by_label(data, rows, scoring.spread(), scoring.modelets()[modelet]->spec().begin,
                                    scoring.modelets()[modelet]->spec().neurons())),
      negatives_(scoring.modelets()[modelet]->spec().neurons(), [&](const auto& use) {
        for (const auto& [neuron, row] : negatives) use(neuron, row);
      }) {}

std::vector<float> vote_weights(const Dataset& data, std::span<const uint32_t> rows) {
  std::vector<double> sums(data.features());
  for (const uint32_t row : rows) {
    const Sample sample = data.sample(row);
    for (size_t i = 0; i < sample.features.size(); ++i) sums[sample.features[i]] += std::abs(sample.values[i]);
  }
  std::vector<float> weights(sums.size());
  std::ranges::transform(sums, weights.begin(), [](double sum) { return static_cast<float>(std::pow(sum + 1, -kPopular)); });
  return weights;
}

template <class Find>
void ClassifierFit::for_each_neuron(size_t begin, size_t end, ClassifierSolvers& solvers, const Find& find) {
  Direct& direct = *scoring_.modelets()[modelet_]->direct();
  const float share = scoring_.settings().classifiers;
  solvers.pool_.for_pieces(end - begin, kLabelsTogether, [&](size_t first, size_t last) {
    ClassifierSolvers::Solver& solver = solvers.of_this_thread();
    for (size_t row = begin + first; row < begin + last; ++row) {
      const std::span<const uint32_t> features = direct.pairs.features(row);
      if (direct.earlier.biases.empty())
        solver.begin(features.size());
      else
        solver.begin(direct.pairs.of_row(std::span(std::as_const(direct.earlier).weights), row),
                     direct.earlier.biases[row]);
      find(solver, row, features);
      const float factor = share / scoring_.factor({modelet_, row});
      std::ranges::transform(solver.weights(),
                             direct.pairs.of_row(std::span(direct.classifiers->weights), row).begin(),
                             [&](float weight) { return factor * weight; });
      direct.classifiers->biases[row] = share * (solver.bias() - kDoubt);
    }
  });
}

void ClassifierFit::fit(size_t begin, size_t end, ClassifierSolvers& solvers) {
  const size_t first_neuron = scoring_.modelets()[modelet_]->spec().begin;
  for_each_neuron(begin, end, solvers,
                  [&](ClassifierSolvers::Solver& solver, size_t row, std::span<const uint32_t> features) {
                    const std::span<const uint32_t> positives = positives_.of(row);
                    std::vector<uint32_t> negatives(negatives_.of(row).begin(), negatives_.of(row).end());
                    std::ranges::sort(negatives);
                    solver.fit(spread_out(positives, std::min(positives.size(), kMostPositives)), negatives, features,
                               Rng(0, {kStreamClassifiers, first_neuron + row}));
                  });
}

void ClassifierFit::vote(size_t begin, size_t end, std::span<const float> weights, ClassifierSolvers& solvers) {
  for_each_neuron(begin, end, solvers,
                  [&](ClassifierSolvers::Solver& solver, size_t row, std::span<const uint32_t> features) {
                    solver.vote(positives_.of(row), features, weights);
                  });
}

}  // namespace modelet::shard
