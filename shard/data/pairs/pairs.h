// Pairs: the direct path from features to the labels of one output modelet, beside the hidden layers. A pair
// is a feature and a label that occur together in a training sample. The direct path adds to a logit
//
//     logit(x, l) += scale[class of l] * cos(x, centroid_l)
//
// from an array over the pairs of label l. Two more arrays are for scoring and for model.exclude_own:
//
//     sums      The sum of the label's training samples, which is the direction of its centroid. A sample x
//               is as near to the label as cos(x, centroid). This is what a nearest-neighbour search or a
//               label tree sees, and what a narrow hidden layer forgets about rare labels (Rocchio, 1971; Yu
//               et al., "PECOS", JMLR 2022). Five scales are learned, one for each class of label frequency
//               (Modelet::direct()).
//     classifiers
//               What is fitted after training (shard/layers/scoring/classifiers.h). When a sample is scored,
//               sum over f of x_f / |x| * classifier_fl is added to the logit.
//     weights   With model.exclude_own, sum over f of x_f * weight_fl is added to the logit.
//
// model.exclude_own is for data whose features and labels are the same items, where a sample's features are
// never its labels. Hidden layers learn this badly, because they have to learn it for each item separately,
// and centroids know only which features labels have. So each label gets one more pair, with the feature of
// the label's own number and with kOwnWeight as its weight. All other weights are 0.
//
// Pairs belong to the modelet's rows and are sharded with them. They follow from the training rows alone:
// build() gives the same result whatever the nodes and threads. If a model goes on with other samples, add()
// adds theirs. The pairs of a label lie side by side, features ascending. Different threads may update different
// labels.
#pragma once

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

// So low that the label has no chance, however small the feature's value. In a row of length one, an item that
// was counted once beside one that was counted a million times has the value 1e-6.
inline constexpr float kOwnWeight = -1e12f;
// A lower sum of weights contains that of an own pair.
inline constexpr float kExcluded = -1000;

// What an experiment says about pairs.
struct PairOptions {
  bool used = false;         // whether there is a direct path
  bool exclude_own = false;  // each label has a pair with the feature of its number, of weight kOwnWeight
  uint32_t most = 0;         // most pairs of a label; 0: all
  float classifiers = 0;     // weight of the labels' linear classifiers; 0: there are none
  float scored_share = 1;    // factor of the centroids' scales when rare labels are scored
};
PairOptions pair_options(const Experiment& experiment);

// The pairs of one label in one of the arrays, for products.
struct LabelPairs {
  std::span<const uint32_t> features;
  const float* values = nullptr;
};

class Pairs {
 public:
  // For neurons [first, first + neurons) of the layer. There are no pairs until build() or restore().
  Pairs(const PairOptions& options, size_t first, size_t neurons);

  // Finds the pairs of these rows (ascending). Weights are zero, except kOwnWeight with exclude_own.
  void build(const Dataset& data, std::span<const uint32_t> rows, const LabelSpread& spread,
             ThreadPool& pool);
  // Adds those of further rows: sums and positives become what build() makes of all rows, and pairs that were
  // there keep their classifiers. If a label may not have more pairs (PairOptions::most), those with
  // the largest sums stay.
  void add(const Dataset& data, std::span<const uint32_t> rows, const LabelSpread& spread, ThreadPool& pool);

  const PairOptions& options() const { return options_; }
  size_t neurons() const { return positives_.size(); }
  size_t size() const { return features_.size(); }
  size_t feature_count() const { return feature_count_; }  // of the data
  // positives(): training samples with the row's label. norm(): length of its sums.
  uint32_t positives(size_t row) const { return positives_[row]; }
  float norm(size_t row) const { return norms_[row]; }
  std::span<const uint32_t> features(size_t row) const {
    return std::span(features_).subspan(offsets_[row], offsets_[row + 1] - offsets_[row]);
  }
  LabelPairs sums(size_t row) const { return {features(row), sums_.data() + offsets_[row]}; }
  // Only with exclude_own.
  LabelPairs weights(size_t row) const { return {features(row), weights_.data() + offsets_[row]}; }

  // How the label is scored: out [pairs of the row] = the factors of x_f / |x| for a sample x, which are those
  // of its centroid, by the scales of all classes, and of its classifier.
  void unit_values(size_t row, std::span<const float, kFrequencyClasses> scales, float* out) const;

  // Classifiers, if the options have them; zero until they are set. What set_classifier() sets is weights [pairs
  // of the row] times factor, and what is added to the label's score for every sample.
  void clear_classifiers();
  void set_classifier(size_t row, std::span<const float> weights, float factor, float bias);
  float classifier_bias(size_t row) const { return classifier_biases_.empty() ? 0 : classifier_biases_[row]; }

  // The arrays as a checkpoint keeps them. The caller of restore() has checked the sizes. It returns false if
  // the values cannot be pairs: offsets that do not ascend, or features that do not exist.
  std::span<const uint64_t> offsets() const { return offsets_; }
  std::span<const uint32_t> features() const { return features_; }
  std::span<const float> sums() const { return sums_; }
  std::span<const float> weights() const { return weights_; }
  std::span<const float> classifiers() const { return classifiers_; }
  std::span<const float> classifier_biases() const { return classifier_biases_; }
  std::span<const uint32_t> positives() const { return positives_; }
  struct Stored {
    std::span<const uint64_t> offsets;
    std::span<const uint32_t> features, positives;
    std::span<const float> sums, weights, classifiers, classifier_biases;  // those of the options
  };
  bool restore(const Stored& stored, uint64_t feature_count);

  size_t memory_bytes() const;

 private:
  void set_norms();
  void keep_fitted(const Pairs& before, size_t row);

  PairOptions options_;
  size_t first_, feature_count_ = 0;
  std::vector<uint64_t> offsets_;         // [neurons + 1]
  std::vector<uint32_t> positives_;       // [neurons]
  std::vector<float> norms_;              // [neurons]
  AlignedVector<uint32_t> features_;      // [pairs]
  AlignedVector<float> sums_;             // [pairs]
  AlignedVector<float> weights_;          // [pairs], or empty
  AlignedVector<float> classifiers_;      // [pairs], or empty
  std::vector<float> classifier_biases_;  // [neurons], or empty
};

}  // namespace modelet::shard
