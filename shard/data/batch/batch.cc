#include "shard/data/batch/batch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "shard/data/batch/dropout.h"
#include "shard/data/batch/split.h"

namespace modelet::shard {

BatchOrder::BatchOrder(std::vector<uint32_t> rows, size_t batch, uint64_t seed)
    : rows_(std::move(rows)), batch_(batch), seed_(seed), permutation_(rows_.size()) {
  MODELET_CHECK(!rows_.empty() && batch > 0 && rows_.size() <= std::numeric_limits<uint32_t>::max());
}

std::span<const uint32_t> BatchOrder::rows(uint64_t step) {
  const uint64_t epoch = step / steps_per_epoch();
  if (epoch != epoch_) shuffle(epoch);
  const size_t first = static_cast<size_t>(step % steps_per_epoch()) * batch_;
  return std::span(permutation_).subspan(first, size(step));
}

std::span<const uint32_t> share_of(std::span<const uint32_t> rows, BatchShare share) {
  MODELET_CHECK(!rows.empty() && share.index < share.count);
  if (rows.size() < share.count) return rows.subspan(share.index % rows.size(), 1);
  const size_t first = first_place(rows.size(), share);
  return rows.subspan(first, rows.size() * (share.index + size_t{1}) / share.count - first);
}

size_t first_place(size_t rows, BatchShare share) {
  return rows < share.count ? share.index : rows * share.index / share.count;
}

// Fisher-Yates, always from the same initial order, so that an epoch's order does not depend on the epochs
// before.
void BatchOrder::shuffle(uint64_t epoch) {
  permutation_ = rows_;
  shuffle_rows(permutation_, Rng(seed_, {kStreamBatchOrder, epoch}));
  epoch_ = epoch;
}

namespace {

// A sample lies anywhere in the file: it is requested some time before it is copied, and its offsets are
// requested a while before that. `from`: a Dataset, or a BlockView.
template <class From, class Add>
void gather_rows(const From& from, std::span<const uint32_t> rows, const Add& add) {
  constexpr size_t kAhead = 8;
  for (size_t i = 0; i < std::min(rows.size(), 2 * kAhead); ++i) from.prefetch_place(rows[i]);
  for (size_t i = 0; i < std::min(rows.size(), kAhead); ++i) from.prefetch(rows[i]);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + 2 * kAhead < rows.size()) from.prefetch_place(rows[i + 2 * kAhead]);
    if (i + kAhead < rows.size()) from.prefetch(rows[i + kAhead]);
    add(rows[i]);
  }
}

}  // namespace

void Batch::assign(const Dataset& data, std::span<const uint32_t> rows, bool by_feature,
                   const FeatureDropout& dropout, size_t first_place) {
  first = first_place;
  others.resize(data.other_blocks().size());
  clear();
  gather_rows(data, rows, [&](uint32_t row) {
    add(data.sample(row));
    label_counts.back() = static_cast<uint32_t>(data.label_count(row));
  });
  for (size_t i = 0; i < others.size(); ++i) {
    const BlockView& block = data.other_blocks()[i];
    gather_rows(block, rows, [&](uint32_t row) { others[i].add(block.of(row)); });
  }
  const auto arrange = [&](BatchBlock& block, size_t number, size_t feature_count) {
    if (dropout.rate > 0) block.drop_features(dropout, first, number);
    block.clear_by_feature();
    if (by_feature) block.sort_by_feature(feature_count);
  };
  arrange(*this, 0, data.features());
  for (size_t i = 0; i < others.size(); ++i) arrange(others[i], i + 1, data.other_blocks()[i].shape.features);
}

void Batch::assign(const Batch& whole, SampleRange samples) {
  first = whole.first + samples.begin;
  clear();
  clear_by_feature();
  for (size_t s = samples.begin; s < samples.end; ++s) {
    const auto entries = whole.offsets[s + 1] - whole.offsets[s];
    add({std::span(whole.features).subspan(whole.offsets[s], entries),
         std::span(whole.values).subspan(whole.offsets[s], entries),
         std::span(whole.labels)
             .subspan(whole.label_offsets[s], whole.label_offsets[s + 1] - whole.label_offsets[s])});
    label_counts.back() = whole.label_counts[s];
  }
}

void Batch::clear() {
  clear_samples();
  for (BatchBlock& block : others) block.clear_samples();
  label_offsets.assign(1, 0);
  labels.clear();
  label_counts.clear();
  weights.clear();
}

void Batch::weigh_unlabelled(float weight) {
  weights.resize(size());
  for (size_t s = 0; s < size(); ++s) weights[s] = label_offsets[s] == label_offsets[s + 1] ? weight : 1;
}

void Batch::add(const Sample& sample) {
  BatchBlock::add({sample.features, sample.values});
  labels.insert(labels.end(), sample.labels.begin(), sample.labels.end());
  label_offsets.push_back(labels.size());
  label_counts.push_back(static_cast<uint32_t>(sample.labels.size()));
}

void BatchBlock::clear_samples() {
  offsets.assign(1, 0);
  features.clear();
  values.clear();
}

void BatchBlock::add(const BlockSample& sample) {
  features.insert(features.end(), sample.features.begin(), sample.features.end());
  values.insert(values.end(), sample.values.begin(), sample.values.end());
  offsets.push_back(features.size());
}

void BatchBlock::clear_by_feature() {
  unique_features.clear();
  feature_offsets.clear();
  feature_samples.clear();
  feature_values.clear();
}

// Closes the gaps: a feature that is left out costs nothing.
void BatchBlock::drop_features(const FeatureDropout& dropout, size_t first, size_t block) {
  const float scale = dropout_scale(dropout.rate);
  size_t kept = 0, next = 0;
  for (size_t sample = 0; sample < size(); ++sample) {
    const Rng rng = block == 0
                        ? Rng(dropout.seed, {kStreamInputDropout, dropout.step, first + sample})
                        : Rng(dropout.seed, {kStreamInputDropout, dropout.step, first + sample, block});
    DropoutMask mask(dropout.rate, rng);
    for (; next < offsets[sample + 1]; ++next) {
      if (mask.drops_next()) continue;
      features[kept] = features[next];
      values[kept++] = values[next] * scale;
    }
    offsets[sample + 1] = kept;
  }
  features.resize(kept);
  values.resize(kept);
}

// Least-significant-digit radix sort of the keys by feature. It is stable, so entries of a feature stay in
// the order of samples. The number of passes follows from the dimension (two up to four million features),
// and digits are then as short as possible, so that fewer places are written to at a time.
void BatchBlock::sort_by_feature(size_t feature_count) {
  constexpr int kMostBits = 11, kMostDigits = 3;  // features are numbers of 32 bits
  const size_t entries = features.size();
  MODELET_CHECK(entries <= std::numeric_limits<uint32_t>::max());
  sort_keys_.resize(entries);
  sort_scratch_.resize(entries);
  const int bits = std::bit_width(feature_count), digits = (bits + kMostBits - 1) / kMostBits;
  const int digit_bits = digits == 0 ? 0 : (bits + digits - 1) / digits;
  const uint32_t mask = (uint32_t{1} << digit_bits) - 1;
  std::array<std::array<uint32_t, uint32_t{1} << kMostBits>, kMostDigits> places;
  for (int digit = 0; digit < digits; ++digit) {
    auto& place = places[static_cast<size_t>(digit)];
    std::fill_n(place.begin(), mask + 1, 0u);
  }
  for (size_t i = 0; i < entries; ++i) {
    sort_keys_[i] = uint64_t{features[i]} << 32 | i;
    for (int digit = 0; digit < digits; ++digit)
      ++places[static_cast<size_t>(digit)][(features[i] >> (digit * digit_bits)) & mask];
  }
  for (int digit = 0; digit < digits; ++digit) {
    auto& place = places[static_cast<size_t>(digit)];
    std::exclusive_scan(place.begin(), place.begin() + mask + 1, place.begin(), 0u);
    const int shift = 32 + digit * digit_bits;
    for (const uint64_t key : sort_keys_) sort_scratch_[place[(key >> shift) & mask]++] = key;
    sort_keys_.swap(sort_scratch_);
  }
  fill_by_feature();
}

void BatchBlock::fill_by_feature() {
  const size_t entries = features.size();
  entry_samples_.resize(entries);
  for (size_t sample = 0; sample < size(); ++sample)
    std::fill(entry_samples_.begin() + static_cast<ptrdiff_t>(offsets[sample]),
              entry_samples_.begin() + static_cast<ptrdiff_t>(offsets[sample + 1]),
              static_cast<uint32_t>(sample));
  feature_samples.resize(entries);
  feature_values.resize(entries);
  unique_features.resize(entries);
  feature_offsets.resize(entries + 1);
  size_t unique = 0;
  uint64_t previous = std::numeric_limits<uint64_t>::max();
  for (size_t i = 0; i < entries; ++i) {
    const uint64_t feature = sort_keys_[i] >> 32;
    const auto entry = static_cast<uint32_t>(sort_keys_[i]);
    feature_samples[i] = entry_samples_[entry];
    feature_values[i] = values[entry];
    // Only the first entry of a feature keeps its place: any other place is overwritten by the next feature.
    unique_features[unique] = static_cast<uint32_t>(feature);
    feature_offsets[unique] = i;
    unique += feature != previous ? 1 : 0;
    previous = feature;
  }
  unique_features.resize(unique);
  feature_offsets.resize(unique + 1);
  feature_offsets[unique] = entries;
}

}  // namespace modelet::shard
