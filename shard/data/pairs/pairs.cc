#include "shard/data/pairs/pairs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "shard/data/pairs/per_feature.h"
#include "shard/data/pairs/row_lists.h"
#include "shard/kernels/ids.h"

namespace modelet::shard {
namespace {

// Adds up samples, feature by feature.
class FeatureSums {
 public:
  explicit FeatureSums(size_t features) : sums_(features), seen_(features) {}

  // The features of a label's earlier pairs and of these rows, ascending. At most `most` (0: all) of them, those
  // with the largest sums.
  std::span<const uint32_t> add_up(const Pairs& before, size_t label, const Dataset& data,
                                   std::span<const uint32_t> rows, size_t most) {
    for (const uint32_t feature : found_) sums_[feature] = seen_[feature] = 0;
    found_.clear();
    for (size_t i = 0; i < before.features(label).size(); ++i)
      add(before.features(label)[i], before.sums(label).values[i]);
    for (const uint32_t row : rows) {
      const Sample sample = data.sample(row);
      for (size_t i = 0; i < sample.features.size(); ++i) add(sample.features[i], sample.values[i]);
    }
    std::span<uint32_t> kept = found_;
    if (most > 0 && most < found_.size()) {
      const auto larger = [&](uint32_t a, uint32_t b) {
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

Pairs::Pairs(size_t most, size_t first, size_t neurons)
    : most_(most), first_(first), offsets_(neurons + 1), positives_(neurons), norms_(neurons) {}

void Pairs::build(const Dataset& data, std::span<const uint32_t> rows, const LabelSpread& spread,
                  ThreadPool& pool) {
  *this = Pairs(most_, first_, neurons());
  add(data, rows, spread, pool);
}

// Counts first and then fills, so that nothing has to be moved. For this each label's features are added up
// twice.
Pairs Pairs::add(const Dataset& data, std::span<const uint32_t> rows, const LabelSpread& spread,
                 ThreadPool& pool) {
  Pairs before = std::exchange(*this, Pairs(most_, first_, neurons()));
  feature_count_ = data.features();
  const RowLists labels = RowLists::by_label(data, rows, spread, first_, neurons());
  std::vector<std::optional<FeatureSums>> sums(pool.threads());
  const auto for_each = [&](const auto& use) {
    pool.for_pieces(neurons(), kLabelsTogether, [&](size_t begin, size_t end) {
      std::optional<FeatureSums>& mine = sums[pool.thread_index()];
      if (!mine) mine.emplace(data.features());
      for (size_t neuron = begin; neuron < end; ++neuron)
        use(neuron, *mine, mine->add_up(before, neuron, data, labels.of(neuron), most_));
    });
  };
  for_each([&](size_t neuron, const FeatureSums&, std::span<const uint32_t> found) {
    offsets_[neuron + 1] = found.size();
    positives_[neuron] = before.positives(neuron) + static_cast<uint32_t>(labels.of(neuron).size());
  });
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  features_.resize(offsets_.back());
  sums_.resize(features_.size());
  for_each([&](size_t neuron, const FeatureSums& added, std::span<const uint32_t> found) {
    const auto at = static_cast<std::ptrdiff_t>(offsets_[neuron]);
    std::ranges::copy(found, features_.begin() + at);
    std::ranges::transform(found, sums_.begin() + at, [&](uint32_t feature) { return added.sum(feature); });
  });
  set_norms();
  return before;
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
  set_norms();
  return true;
}

void Pairs::set_norms() {
  for (size_t row = 0; row < neurons(); ++row) {
    double squares = 0;
    for (uint64_t i = offsets_[row]; i < offsets_[row + 1]; ++i) squares += double{sums_[i]} * sums_[i];
    norms_[row] = length_of(squares);
  }
}

size_t Pairs::memory_bytes() const {
  return features_.size() * (sizeof(uint32_t) + sizeof(float)) +
         neurons() * (sizeof(uint64_t) + sizeof(uint32_t) + sizeof(float));
}

}  // namespace modelet::shard
