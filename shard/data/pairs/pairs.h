// Pairs: the direct path from features to the labels of one output modelet, beside the hidden layers. A pair
// is a feature and a label that occur together in a training sample. Label l's pairs hold
//
//   sums      the sum of the label's training samples: the direction of its centroid. A sample x is as near
//             to the label as cos(x, centroid): what a nearest-neighbour search or a label tree sees, and what
//             a narrow hidden layer forgets of rare labels (Rocchio, 1971; Yu et al., "PECOS", JMLR 2022)
//   weights   one trained weight a pair, as in a linear classifier for each label that knows no features but
//             those that ever came with it
//
// model.exclude_own adds a pair to each label, with the feature of the label's number, of weight kOwnWeight:
// where features and labels are the same items and a sample's features are never its labels, it is hard for
// hidden layers to learn this of each item apart, and centroids know only what labels have. If weights are not
// trained, all others stay 0.
//
// so that logit(x, l) += scale[class of l] * cos(x, centroid_l) + sum over f of x_f weight_fl. Five scales, one
// for each class of label frequency, are learned (Modelet::direct()).
//
// Pairs belong to the modelet's rows and shard with them. They follow from the training rows alone: build() is
// the same whatever the nodes and threads. Pairs of a label lie side by side, features ascending. Different
// threads may update different labels.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/array/aligned.h"
#include "base/experiment/experiment.h"
#include "base/parallel/thread_pool.h"
#include "shard/data/store/dataset.h"
#include "shard/data/store/label_spread.h"

namespace modelet::shard {

// Classes of label frequency: 0 or 1 sample, 2-3, 4-9, 10-99, 100 and more.
inline constexpr size_t kFrequencyClasses = 5;
inline constexpr size_t kRareClasses = 3;  // the first ones
size_t frequency_class(uint32_t samples);

// No chance, with values down to a thousandth: rows of length one, of a million items.
inline constexpr float kOwnWeight = -10000;

// What an experiment says about pairs.
struct PairOptions {
  bool centroids = false, weights = false;
  bool trained = false;      // the weights
  bool exclude_own = false;  // each label has a pair with the feature of its number, of weight kOwnWeight
  uint32_t most = 0;         // pairs of a label; 0: all
  float scored_share = 1;    // of the centroids' scales, for rare labels that are scored
  bool trainable = true;
  bool adaptive = true;  // steps of Adagrad, for which each weight keeps a sum of squares; else of SGD

  bool used() const { return centroids || weights; }
};
PairOptions pair_options(const Experiment& experiment, bool trainable);

// Pairs of one label in one of their arrays: what products are made of.
struct LabelPairs {
  std::span<const uint32_t> features;
  const float* values = nullptr;
};

class Pairs {
 public:
  // Of neurons [first, first + neurons) of the layer; without pairs until build() or restore().
  Pairs(const PairOptions& options, size_t first, size_t neurons);

  // Finds the pairs of these rows, all weights zero. `rows` ascending.
  void build(const Dataset& data, std::span<const uint32_t> rows, const LabelSpread& spread,
             ThreadPool& pool);

  const PairOptions& options() const { return options_; }
  size_t neurons() const { return positives_.size(); }
  size_t size() const { return features_.size(); }
  size_t feature_count() const { return feature_count_; }  // of the data
  // Training samples of a row, and the length of its sums.
  uint32_t positives(size_t row) const { return positives_[row]; }
  float norm(size_t row) const { return norms_[row]; }
  std::span<const uint32_t> features(size_t row) const {
    return std::span(features_).subspan(offsets_[row], offsets_[row + 1] - offsets_[row]);
  }
  // If the options have them.
  LabelPairs sums(size_t row) const { return {features(row), sums_.data() + offsets_[row]}; }
  LabelPairs weights(size_t row) const { return {features(row), weights_.data() + offsets_[row]}; }

  // One step of the weights of a row; gradient(i) is that of its i-th pair, 0 where the batch lacks the feature.
  template <class Gradient>
  void update(size_t row, float rate, const Gradient& gradient);

  // The arrays as a checkpoint keeps them. restore(): sizes have been checked; false if the values are not
  // those of pairs (offsets that do not ascend, features that there are not).
  std::span<const uint64_t> offsets() const { return offsets_; }
  std::span<const uint32_t> features() const { return features_; }
  std::span<const float> sums() const { return sums_; }
  std::span<const float> weights() const { return weights_; }
  std::span<const float> squares() const { return squares_; }
  std::span<const uint32_t> positives() const { return positives_; }
  struct Stored {
    std::span<const uint64_t> offsets;
    std::span<const uint32_t> features, positives;
    std::span<const float> sums, weights, squares;  // those that the options have
  };
  bool restore(const Stored& stored, uint64_t feature_count);
  bool keeps_squares() const { return options_.trained && options_.trainable && options_.adaptive; }

  size_t memory_bytes() const;

 private:
  void set_norms();

  PairOptions options_;
  size_t first_, feature_count_ = 0;
  std::vector<uint64_t> offsets_;     // [neurons + 1]
  std::vector<uint32_t> positives_;   // [neurons]
  std::vector<float> norms_;          // [neurons]
  AlignedVector<uint32_t> features_;  // [pairs]
  AlignedVector<float> sums_;         // [pairs], or empty
  AlignedVector<float> weights_;      // [pairs], or empty
  AlignedVector<float> squares_;      // [pairs] of gradients, or empty
};

template <class Gradient>
void Pairs::update(size_t row, float rate, const Gradient& gradient) {
  constexpr float kTiny = 1e-10f;  // Adagrad's epsilon, squared
  for (uint64_t i = offsets_[row]; i < offsets_[row + 1]; ++i) {
    const float g = gradient(i - offsets_[row]);
    if (g == 0) continue;
    if (options_.adaptive) squares_[i] += g * g;
    weights_[i] -= rate * g / (options_.adaptive ? std::sqrt(squares_[i] + kTiny) : 1.0f);
  }
}

}  // namespace modelet::shard
