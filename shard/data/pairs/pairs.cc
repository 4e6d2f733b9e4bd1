#include "shard/data/pairs/pairs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "shard/data/pairs/per_feature.h"
#include "shard/data/pairs/row_lists.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/ids.h"

namespace modelet::shard {
namespace {

// Adds up samples, feature by feature.
class FeatureSums {
 public:
  explicit FeatureSums(size_t features) : sums_(features), seen_(features) {}

  // The features of a label's earlier pairs and of these rows, ascending. At most `most` (0: all) of them, those
  // with the largest sums. `own`, if there is such a feature, is always among them.
  std::span<const uint32_t> add_up(const Pairs& before, size_t label, const Dataset& data,
                                   std::span<const uint32_t> rows, size_t most, std::optional<uint32_t> own) {
    for (const uint32_t feature : found_) sums_[feature] = seen_[feature] = 0;
    found_.clear();
    if (own) add(*own, 0);
    for (size_t i = 0; i < before.features(label).size(); ++i)
      add(before.features(label)[i], before.sums(label).values[i]);
    for (const uint32_t row : rows) {
      const Sample sample = data.sample(row);
      for (size_t i = 0; i < sample.features.size(); ++i) add(sample.features[i], sample.values[i]);
    }
    std::span<uint32_t> kept = found_;
    if (most > 0 && most < found_.size()) {
      const auto larger = [&](uint32_t a, uint32_t b) {
        if (a == own || b == own) return a == own && a != b;
        return kernels::comes_before(-std::abs(sums_[a]), a, -std::abs(sums_[b]), b);
      };
      std::ranges::nth_element(found_, found_.begin() + static_cast<std::ptrdiff_t>(most), larger);
      kept = kept.first(most);
    }
    std::ranges::sort(kept);
    return kept;
  }
  float sum(uint32_t feature) const { return sums_[feature]; }

 private:
  void add(uint32_t feature, float value) {
    if (seen_[feature] == 0) found_.push_back(feature);
    seen_[feature] = 1;
    sums_[feature] += value;
  }

  PerFeature<float> sums_;
  PerFeature<uint8_t> seen_;
  std::vector<uint32_t> found_;
};

constexpr size_t kLabelsTogether = 64;

}  // namespace

size_t frequency_class(uint32_t samples) {
  constexpr std::array<uint32_t, kFrequencyClasses - 1> kFirst = {2, 4, 10, 100};
  return static_cast<size_t>(std::ranges::upper_bound(kFirst, samples) - kFirst.begin());
}

PairOptions pair_options(const Experiment& experiment) {
  return {.used = experiment.model.centroids,
          .exclude_own = experiment.model.exclude_own,
          .most = experiment.model.centroid_pairs,
          .classifiers = experiment.model.centroids ? experiment.model.classifiers : 0,
          .scored_share = experiment.model.centroid_share};
}

Pairs::Pairs(const PairOptions& options, size_t first, size_t neurons)
    : options_(options), first_(first), offsets_(neurons + 1), positives_(neurons), norms_(neurons) {}

void Pairs::build(const Dataset& data, std::span<const uint32_t> rows, const LabelSpread& spread,
                  ThreadPool& pool) {
  *this = Pairs(options_, first_, neurons());
  add(data, rows, spread, pool);
}

// Counts first and then fills, so that nothing has to be moved. For this each label's features are added up
// twice.
void Pairs::add(const Dataset& data, std::span<const uint32_t> rows, const LabelSpread& spread,
                ThreadPool& pool) {
  const Pairs before = std::exchange(*this, Pairs(options_, first_, neurons()));
  feature_count_ = data.features();
  const RowLists labels = RowLists::by_label(data, rows, spread, first_, neurons());
  std::vector<std::optional<FeatureSums>> sums(pool.threads());
  const auto own_feature = [&](size_t neuron) -> std::optional<uint32_t> {
    const uint32_t label = spread.label(static_cast<uint32_t>(first_ + neuron));
    return options_.exclude_own && label < data.features() ? std::optional(label) : std::nullopt;
  };
  const auto for_each = [&](const auto& use) {
    pool.for_pieces(neurons(), kLabelsTogether, [&](size_t begin, size_t end) {
      std::optional<FeatureSums>& mine = sums[pool.thread_index()];
      if (!mine) mine.emplace(data.features());
      for (size_t neuron = begin; neuron < end; ++neuron)
        use(neuron, *mine,
            mine->add_up(before, neuron, data, labels.of(neuron), options_.most, own_feature(neuron)));
    });
  };
  for_each([&](size_t neuron, const FeatureSums&, std::span<const uint32_t> found) {
    offsets_[neuron + 1] = found.size();
    positives_[neuron] = before.positives(neuron) + static_cast<uint32_t>(labels.of(neuron).size());
  });
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  features_.resize(offsets_.back());
  sums_.resize(features_.size());
  weights_.assign(options_.exclude_own ? features_.size() : 0, 0.0f);
  clear_classifiers();
  for_each([&](size_t neuron, const FeatureSums& added, std::span<const uint32_t> found) {
    const auto at = static_cast<std::ptrdiff_t>(offsets_[neuron]);
    std::ranges::copy(found, features_.begin() + at);
    if (const std::optional<uint32_t> own = own_feature(neuron))
      weights_[offsets_[neuron] +
               static_cast<size_t>(std::ranges::lower_bound(found, *own) - found.begin())] = kOwnWeight;
    keep_fitted(before, neuron);
    std::ranges::transform(found, sums_.begin() + at, [&](uint32_t feature) { return added.sum(feature); });
  });
  set_norms();
}

// The classifier of a label.
void Pairs::keep_fitted(const Pairs& before, size_t row) {
  if (classifiers_.empty() || before.classifiers_.empty()) return;
  const std::span<const uint32_t> now = features(row), then = before.features(row);
  for (size_t i = 0; i < then.size(); ++i) {
    const auto found = std::ranges::lower_bound(now, then[i]);
    if (found == now.end() || *found != then[i]) continue;
    const uint64_t to = offsets_[row] + static_cast<uint64_t>(found - now.begin()),
                   from = before.offsets_[row] + i;
    classifiers_[to] = before.classifiers_[from];
  }
  classifier_biases_[row] = before.classifier_biases_[row];
}

bool Pairs::restore(const Stored& stored, uint64_t feature_count) {
  if (!std::ranges::is_sorted(stored.offsets) || stored.offsets.front() != 0 ||
      stored.offsets.back() != stored.features.size())
    return false;
  if (std::ranges::any_of(stored.features, [&](uint32_t feature) { return feature >= feature_count; }))
    return false;
  feature_count_ = feature_count;
  offsets_.assign(stored.offsets.begin(), stored.offsets.end());
  features_.assign(stored.features.begin(), stored.features.end());
  positives_.assign(stored.positives.begin(), stored.positives.end());
  sums_.assign(stored.sums.begin(), stored.sums.end());
  weights_.assign(stored.weights.begin(), stored.weights.end());
  classifiers_.assign(stored.classifiers.begin(), stored.classifiers.end());
  classifier_biases_.assign(stored.classifier_biases.begin(), stored.classifier_biases.end());
  set_norms();
  return true;
}

void Pairs::clear_classifiers() {
  if (options_.classifiers == 0) return;
  classifiers_.assign(features_.size(), 0.0f);
  classifier_biases_.assign(neurons(), 0.0f);
}

void Pairs::set_classifier(size_t row, std::span<const float> weights, float factor, float bias) {
  std::ranges::transform(weights, classifiers_.begin() + static_cast<std::ptrdiff_t>(offsets_[row]),
                         [&](float weight) { return factor * weight; });
  classifier_biases_[row] = bias;
}

void Pairs::unit_values(size_t row, std::span<const float, kFrequencyClasses> scales, float* out) const {
  const uint64_t begin = offsets_[row], end = offsets_[row + 1];
  if (options_.classifiers > 0)
    std::copy(classifiers_.data() + begin, classifiers_.data() + end, out);
  else
    std::fill_n(out, end - begin, 0.0f);
  if (norms_[row] == 0) return;
  const float scale = scales[frequency_class(positives_[row])] / norms_[row];
  for (uint64_t i = begin; i < end; ++i) out[i - begin] += scale * sums_[i];
}

void Pairs::set_norms() {
  for (size_t row = 0; row < neurons(); ++row) {
    double squares = 0;
    for (uint64_t i = offsets_[row]; i < offsets_[row + 1]; ++i) squares += double{sums_[i]} * sums_[i];
    norms_[row] = length_of(squares);
  }
}

size_t Pairs::memory_bytes() const {
  return features_.size() * sizeof(uint32_t) +
         (sums_.size() + weights_.size() + classifiers_.size()) * sizeof(float) +
         neurons() * (sizeof(uint64_t) + sizeof(uint32_t) + sizeof(float)) +
         classifier_biases_.size() * sizeof(float);
}

}  // namespace modelet::shard
