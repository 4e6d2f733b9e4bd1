#include "shard/data/pairs/divide_labels.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "shard/data/pairs/pairs.h"

namespace modelet::shard {
namespace {

constexpr int kRoundsOfTwoMeans = 10;
constexpr size_t kLabelsOfPiece = 512;  // whose centroids one thread compares at a time

// How much work a label is. One without samples counts too, so that these are spread as well.
double mass_of(uint32_t samples) { return samples + 1.0; }

// Labels by falling frequency, each to the tower with the least so far; equally frequent ones in a random order.
std::vector<uint32_t> deal_out(std::span<const uint32_t> counts, uint32_t towers, Rng& rng) {
  std::vector<std::pair<uint64_t, uint32_t>> order;  // (what decides the place, label)
  for (uint32_t label = 0; label < counts.size(); ++label)
    order.emplace_back((uint64_t{~counts[label]} << 32) | (rng.next() >> 32), label);
  std::ranges::sort(order);
  std::vector<std::pair<double, uint32_t>> lightest;  // a heap of (mass, tower)
  for (uint32_t tower = 0; tower < towers; ++tower) lightest.emplace_back(0, tower);
  std::vector<uint32_t> tower_of(counts.size());
  for (const auto& [key, label] : order) {
    std::ranges::pop_heap(lightest, std::greater<>());
    lightest.back().first += mass_of(counts[label]);
    tower_of[label] = lightest.back().second;
    std::ranges::push_heap(lightest, std::greater<>());
  }
  return tower_of;
}

// Ascending.
std::vector<uint32_t> most_frequent(std::span<const uint32_t> counts, size_t most) {
  std::vector<uint32_t> labels(counts.size());
  std::iota(labels.begin(), labels.end(), 0u);
  std::ranges::stable_sort(labels, std::greater<>(), [&](uint32_t label) { return counts[label]; });
  labels.resize(std::min(most, labels.size()));
  std::ranges::sort(labels);
  return labels;
}

class TwoMeans {
 public:
  TwoMeans(const Pairs& centroids, const LabelSpread& spread, std::span<const uint32_t> counts,
           ThreadPool& pool)
      : centroids_(centroids),
        spread_(spread),
        counts_(counts),
        pool_(pool),
        direction_(centroids.feature_count()),
        nearness_(counts.size()) {}

  // Puts `labels` into the towers [first, first + towers).
  void divide(std::span<uint32_t> labels, uint32_t first, uint32_t towers, std::vector<uint32_t>& tower_of,
              Rng& rng) {
    if (towers == 1) {
      for (const uint32_t label : labels) tower_of[label] = first;
      return;
    }
    const uint32_t left = towers / 2;
    const size_t middle = split(labels, left, towers, rng);
    divide(labels.first(middle), first, left, tower_of, rng);
    divide(labels.subspan(middle), first + left, towers - left, tower_of, rng);
  }

 private:
  double mass(uint32_t label) const { return mass_of(counts_[label]); }

  // Orders the labels so that the first ones, with left / towers of the samples, are alike. Returns how many these
  // are: at least one label for each tower on both sides.
  size_t split(std::span<uint32_t> labels, uint32_t left, uint32_t towers, Rng& rng) {
    double all = 0;
    for (const uint32_t label : labels) all += mass(label);
    const size_t a = rng.below(static_cast<uint32_t>(labels.size()));
    const size_t b = (a + 1 + rng.below(static_cast<uint32_t>(labels.size() - 1))) % labels.size();
    std::ranges::fill(direction_, 0.0f);
    add(labels[a], 1);
    add(labels[b], -1);
    size_t middle = 0;
    for (int round = 0; round < kRoundsOfTwoMeans; ++round) {
      sort_by_nearness(labels);
      middle = 0;
      for (double sum = 0; middle < labels.size() && sum < all * left / towers; ++middle)
        sum += mass(labels[middle]);
      middle = std::clamp<size_t>(middle, left, labels.size() - (towers - left));
      if (round + 1 < kRoundsOfTwoMeans) aim(labels, middle);
    }
    return middle;
  }

  // From the mean direction of the labels after `middle` to that of those before.
  void aim(std::span<const uint32_t> labels, size_t middle) {
    std::vector<float> near(direction_.size()), far(direction_.size());
    for (size_t i = 0; i < labels.size(); ++i) add_to(i < middle ? near : far, labels[i], 1);
    const double of_near = length(near), of_far = length(far);
    for (size_t f = 0; f < direction_.size(); ++f)
      direction_[f] = static_cast<float>(near[f] / of_near - far[f] / of_far);
  }

  void sort_by_nearness(std::span<uint32_t> labels) {
    pool_.for_pieces(labels.size(), kLabelsOfPiece, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const uint32_t row = spread_.neuron(labels[i]);
        const LabelPairs pairs = centroids_.sums(row);
        double dot = 0;
        for (size_t p = 0; p < pairs.features.size(); ++p)
          dot += double{direction_[pairs.features[p]]} * pairs.values[p];
        nearness_[labels[i]] = centroids_.norm(row) > 0 ? static_cast<float>(dot / centroids_.norm(row)) : 0;
      }
    });
    std::ranges::sort(labels, [&](uint32_t a, uint32_t b) {
      return nearness_[a] != nearness_[b] ? nearness_[a] > nearness_[b] : a < b;
    });
  }

  void add(uint32_t label, float times) { add_to(direction_, label, times); }
  void add_to(std::vector<float>& sum, uint32_t label, float times) const {
    const uint32_t row = spread_.neuron(label);
    if (centroids_.norm(row) <= 0) return;
    const LabelPairs pairs = centroids_.sums(row);
    for (size_t p = 0; p < pairs.features.size(); ++p)
      sum[pairs.features[p]] += times * pairs.values[p] / centroids_.norm(row);
  }

  static double length(std::span<const float> values) {
    const double squares = std::transform_reduce(values.begin(), values.end(), 1e-18, std::plus<>(),
                                                 [](float v) { return double{v} * v; });
    return std::sqrt(squares);
  }

  const Pairs& centroids_;
  const LabelSpread& spread_;
  std::span<const uint32_t> counts_;
  ThreadPool& pool_;
  std::vector<float> direction_;  // [features]
  std::vector<float> nearness_;   // [labels] to the first half
};

bool is_clustered(TowerLabels kind, uint32_t division) {
  return kind == TowerLabels::kClustered || (kind == TowerLabels::kMixed && division == 0);
}

}  // namespace

LabelDivision divide_labels(const Experiment& experiment, const Dataset& data, std::span<const uint32_t> rows,
                            ThreadPool& pool) {
  const Experiment::Model& model = experiment.model;
  const size_t labels = data.labels();
  if (labels < model.towers)
    throw UsageError("model.towers is " + std::to_string(model.towers) + ", and the data has " +
                     std::to_string(labels) + " labels: choose at most one tower for each label");
  const std::vector<uint32_t> counts = count_labels(data);
  const LabelSpread spread(labels);
  const size_t most = model.centroid_pairs;
  Pairs centroids(most, 0, is_clustered(model.tower_labels, 0) ? labels : 0);
  if (centroids.neurons() > 0) centroids.build(data, rows, spread, pool);
  std::vector<uint32_t> tower_of;
  for (uint32_t division = 0; division < model.divisions; ++division) {
    Rng rng(experiment.train.seed, {kStreamTowers, division});
    std::vector<uint32_t> of_division(labels);
    if (is_clustered(model.tower_labels, division)) {
      std::vector<uint32_t> all(labels);
      std::iota(all.begin(), all.end(), 0u);
      TwoMeans(centroids, spread, counts, pool).divide(all, 0, model.towers, of_division, rng);
    } else {
      of_division = deal_out(counts, model.towers, rng);
    }
    tower_of.insert(tower_of.end(), of_division.begin(), of_division.end());
  }
  return {model.towers, model.divisions, std::move(tower_of), most_frequent(counts, model.tower_common)};
}

}  // namespace modelet::shard
