// Batches: which samples a step sees, and their gathered form.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/array/sample_range.h"
#include "shard/data/store/dataset.h"

namespace modelet::shard {

// The order of samples: a seeded permutation of each epoch, a function of (seed, epoch, step) alone. The last
// batch of an epoch may be short. Only one thread may call rows(), which caches the permutation of the
// current epoch. Any thread may call the other functions.
class BatchOrder {
 public:
  // `rows` of the data set take part; batch > 0.
  BatchOrder(std::vector<uint32_t> rows, size_t batch, uint64_t seed);
  size_t steps_per_epoch() const { return (rows_.size() + batch_ - 1) / batch_; }
  // Number of rows in the batch of a global step. Any thread.
  size_t size(uint64_t step) const {
    return std::min(batch_, rows_.size() - static_cast<size_t>(step % steps_per_epoch()) * batch_);
  }
  // Rows of the batch of a global step (epoch = step / steps_per_epoch()). Valid until the next call.
  std::span<const uint32_t> rows(uint64_t step);

 private:
  void shuffle(uint64_t epoch);

  std::vector<uint32_t> rows_;
  size_t batch_;
  uint64_t seed_, epoch_ = ~uint64_t{0};
  std::vector<uint32_t> permutation_;
};

// A share of each batch: the index-th of `count` shares of nearly equal size. Replicas of a model train on
// one share each. With `own_rows` the replica has rows of its own, and all batches of these.
struct BatchShare {
  uint32_t index = 0, count = 1;
  bool own_rows = false;
};
// Never empty: if there are fewer rows than shares, some rows are in several shares.
std::span<const uint32_t> share_of(std::span<const uint32_t> rows, BatchShare share);
// The place of the share's first sample in the whole batch of `rows` rows. Each share has another place, even
// if there are fewer rows than shares.
size_t first_place(size_t rows, BatchShare share);

// Which features of a batch's samples a training step leaves out (shard/data/batch/dropout.h).
struct FeatureDropout {
  float rate = 0;
  uint64_t seed = 0, step = 0;
};

// One block of the input of a gathered batch, by sample (CSR) and by feature (CSC: the input layer's gradient is
// accumulated per unique feature).
class BatchBlock {
 public:
  std::vector<uint64_t> offsets;  // [size + 1] into features, values
  std::vector<uint32_t> features;
  std::vector<float> values;

  std::vector<uint32_t> unique_features;  // ascending
  std::vector<uint64_t> feature_offsets;  // [unique + 1] into feature_samples, feature_values
  std::vector<uint32_t> feature_samples;  // index in the batch, ascending within a feature
  std::vector<float> feature_values;

  size_t size() const { return offsets.empty() ? 0 : offsets.size() - 1; }  // samples

 private:
  friend struct Batch;
  void clear_samples();
  void add(const BlockSample& sample);
  // Features of sample i are left out as the stream {place..., first + i} of random numbers says.
  void drop_features(const FeatureDropout& dropout, size_t first, size_t block);
  void clear_by_feature();
  void sort_by_feature(size_t feature_count);
  void fill_by_feature();

  std::vector<uint64_t> sort_keys_, sort_scratch_;  // feature << 32 | index of the entry in `features`
  std::vector<uint32_t> entry_samples_;             // [entries] sample of an entry
};

// A gathered batch; its first block is the batch itself. Reusable: assign() keeps the memory.
struct Batch : BatchBlock {
  std::vector<BatchBlock> others;       // as Dataset::other_blocks()
  std::vector<uint64_t> label_offsets;  // [size + 1] into labels
  std::vector<uint32_t> labels;  // as far as the data set has them: at least those of the node's neurons
  std::vector<uint32_t> label_counts;  // [size] of all labels of a sample

  std::vector<float> weights;          // [size] of a sample's loss; empty: all are 1

  float weight(size_t sample) const { return weights.empty() ? 1 : weights[sample]; }
  // Gives samples without labels this weight.
  void weigh_unlabelled(float weight);

  // Place of the first sample in the batch of all replicas together. Random draws for a sample follow from
  // this place. So each replica draws for itself, and all of them together draw what one model with all
  // samples would.
  size_t first = 0;

  // For inference, sample by sample.
  void clear();
  void add(const Sample& sample);

  // `by_feature` builds the second half of each block (training); evaluation leaves it empty.
  void assign(const Dataset& data, std::span<const uint32_t> rows, bool by_feature,
              const FeatureDropout& dropout = {}, size_t first_place = 0);
  // Some samples of another batch, as far as the output layer reads them: their labels, and the first block by
  // sample.
  void assign(const Batch& whole, SampleRange samples);
};

}  // namespace modelet::shard
