// Pairs: the features that occur together with each label of one output modelet, and the centroids of these
// labels. A pair is a feature and a label that occur together in a training sample. Its value is the sum of the
// feature over the label's training samples. The sums of a label are the direction of its centroid: a sample x
// is as near to the label as cos(x, centroid). This is what a nearest-neighbour search or a label tree sees, and
// what a narrow hidden layer forgets about rare labels (Rocchio, 1971; Yu et al., "PECOS", JMLR 2022). The
// cosine, times one of five learned scales for classes of label frequency (Direct, shard/modelet/modelet.h), is
// a term of the label's logit.
//
// Pairs belong to the modelet's rows and are sharded with them. They follow from the training rows alone:
// build() gives the same result whatever the nodes and threads. If a model goes on with other samples, add()
// adds theirs. The pairs of a label lie side by side, features ascending. Different threads may read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/array/aligned.h"
#include "base/parallel/thread_pool.h"
#include "shard/data/store/dataset.h"
#include "shard/data/store/label_spread.h"

namespace modelet::shard {

// Classes of label frequency: 0 or 1 sample, 2-3, 4-9, 10-99, 100 and more.
inline constexpr size_t kFrequencyClasses = 5;
size_t frequency_class(uint32_t samples);

// A label's pairs with a value for each of them, for products.
struct LabelPairs {
  std::span<const uint32_t> features;
  const float* values = nullptr;
};

class Pairs {
 public:
  // For neurons [first, first + neurons) of the layer, with at most `most` pairs of each, those with the largest
  // sums; 0: all. There are no pairs until build() or restore().
  Pairs(size_t most, size_t first, size_t neurons);

  // Finds the pairs of these rows (ascending).
  void build(const Dataset& data, std::span<const uint32_t> rows, const LabelSpread& spread,
             ThreadPool& pool);
  // Adds those of further rows: pairs, sums and positives become what build() makes of all rows. Returns the pairs
  // as they were.
  Pairs add(const Dataset& data, std::span<const uint32_t> rows, const LabelSpread& spread, ThreadPool& pool);

  size_t neurons() const { return positives_.size(); }
  size_t size() const { return features_.size(); }
  size_t feature_count() const { return feature_count_; }  // of the data
  // positives(): training samples with the row's label. norm(): length of its sums.
  uint32_t positives(size_t row) const { return positives_[row]; }
  float norm(size_t row) const { return norms_[row]; }
  std::span<const uint32_t> features(size_t row) const { return of_row(std::span(features_), row); }
  LabelPairs sums(size_t row) const { return {features(row), sums_.data() + offsets_[row]}; }

  // The part of an array [pairs] that belongs to a row.
  template <class T>
  std::span<T> of_row(std::span<T> values, size_t row) const {
    return values.subspan(offsets_[row], offsets_[row + 1] - offsets_[row]);
  }

  // The arrays as a checkpoint keeps them. The caller of restore() has checked the sizes. It returns false if
  // the values cannot be pairs: offsets that do not ascend, or features that do not exist.
  std::span<const uint64_t> offsets() const { return offsets_; }
  std::span<const uint32_t> features() const { return features_; }
  std::span<const float> sums() const { return sums_; }
  std::span<const uint32_t> positives() const { return positives_; }
  struct Stored {
    std::span<const uint64_t> offsets;
    std::span<const uint32_t> features, positives;
    std::span<const float> sums;
  };
  bool restore(const Stored& stored, uint64_t feature_count);

  size_t memory_bytes() const;

 private:
  void set_norms();

  size_t most_, first_, feature_count_ = 0;
  std::vector<uint64_t> offsets_;     // [neurons + 1]
  std::vector<uint32_t> positives_;   // [neurons]
  std::vector<float> norms_;          // [neurons]
  AlignedVector<uint32_t> features_;  // [pairs]
  AlignedVector<float> sums_;         // [pairs]
};

}  // namespace modelet::shard
