#include "shard/data/encode/features/word_features.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/array/padding.h"
#include "base/array/prefetch.h"
#include "base/error.h"
#include "base/text/value_name.h"
#include "shard/data/read/sample.h"
#include "shard/data/read/word_scan.h"
#include "shard/kernels/ids.h"

namespace modelet::shard {

void WordFeatures::Fitting::count_fetched() {
  for (const uint32_t bucket : fetched) buckets[bucket].add(fetched_of);
}

void WordFeatures::count(std::span<const std::string_view> words, uint64_t sample) {
  if (!fitting_) fitting_ = std::make_unique<Fitting>(options_);
  Fitting& fitting = *fitting_;
  fitting.ids.clear();
  fitting.hasher.append(words, fitting.ids);
  for (const uint32_t bucket : fitting.ids) prefetch_line(&fitting.buckets[bucket]);
  fitting.count_fetched();
  fitting.fetched.swap(fitting.ids);
  fitting.fetched_of = sample;
}

void WordFeatures::finish(uint64_t samples) {
  if (!fitting_) fitting_ = std::make_unique<Fitting>(options_);
  fitting_->count_fetched();
  const AlignedVector<Occurrences>& counts = fitting_->buckets;
  const uint32_t needed = std::max(options_.min_count, 1u);
  const auto chosen = [&](const Occurrences& bucket) { return bucket.samples >= needed; };
  buckets_.resize(static_cast<size_t>(std::ranges::count_if(counts, chosen)) + 1);
  size_t features = 0;
  for (uint32_t bucket = 0; bucket < counts.size(); ++bucket) {
    buckets_[features] = bucket;  // the next bucket overwrites it unless it is chosen
    features += chosen(counts[bucket]) ? 1 : 0;
  }
  buckets_.resize(features);
  if (options_.weight == TextWeight::kTfIdf)
    for (const uint32_t bucket : buckets_)
      idf_.push_back(static_cast<float>(
          1 + std::log((1 + static_cast<double>(samples)) / (1 + static_cast<double>(counts[bucket].samples)))));
  fitting_.reset();
  number_buckets();
}

void WordFeatures::know_all() {
  if (options_.weight == TextWeight::kTfIdf)
    throw UsageError("text.weight = \"tfidf\" counts in how many samples words occur, so it needs data to be fitted on: take \"tf\"");
  buckets_.resize(options_.buckets);
  std::iota(buckets_.begin(), buckets_.end(), 0u);
  number_buckets();
}

void WordFeatures::number_buckets() {
  constexpr uint32_t kBlock = kernels::kRankBlock;
  blocks_.assign(2 * (options_.buckets / kBlock + 1), 0);
  for (const uint32_t bucket : buckets_) blocks_[2 * (bucket / kBlock)] |= 1u << bucket % kBlock;
  for (size_t i = 2; i < blocks_.size(); i += 2)
    blocks_[i + 1] = blocks_[i - 1] + static_cast<uint32_t>(std::popcount(blocks_[i - 2]));
}

void WordFeatures::add_tensors(const std::string& prefix, std::vector<Tensor>& tensors) const {
  tensors.push_back(tensor(prefix + "buckets", {buckets_.size()}, buckets_));
  if (options_.weight == TextWeight::kTfIdf) tensors.push_back(tensor(prefix + "idf", {idf_.size()}, idf_));
}

void WordFeatures::restore(const SafetensorsFile& state, const std::string& prefix) {
  const auto buckets = list_in<uint32_t>(state, prefix + "buckets");
  bool good = buckets.empty() || buckets.back() < options_.buckets;
  for (size_t i = 1; i < buckets.size(); ++i) good &= buckets[i - 1] < buckets[i];
  if (!good) throw FormatError(state.path().string() + ": damaged: its buckets do not ascend");
  buckets_.assign(buckets.begin(), buckets.end());
  if (options_.weight == TextWeight::kTfIdf) {
    const auto idf = state.values<float>(prefix + "idf", {buckets_.size()});
    // Checked, because a prepared file must not hold what is not finite.
    if (!std::all_of(idf.begin(), idf.end(), [](float v) { return v > 0 && v < 100; }))
      throw FormatError(state.path().string() + ": damaged: an idf is out of range");
    idf_.assign(idf.begin(), idf.end());
  }
  number_buckets();
}

void WordFeatures::Appender::append(std::span<const std::string_view> words, FeatureList& features) {
  ids_.clear();
  hasher_.append(words, ids_);
  const size_t ngrams = ids_.size();
  ids_.resize(ngrams + kVectorFloats);
  const size_t known = kernels::member_ranks(of_.blocks_.data(), ids_.data(), ngrams, ids_.data());
  kernels::sort_ids(ids_.data(), known);
  const size_t first = features.ids.size();
  count_features(known, features);
  for (size_t i = first; i < features.ids.size(); ++i) {
    if (!of_.idf_.empty()) features.values[i] = (1 + std::log(features.values[i])) * of_.idf_[features.ids[i]];
    features.ids[i] += features.base;
  }
}

// Adds the different features among the first `known` of the sorted ids_, without their base, and how often each occurs.
// No branch depends on an id: a later entry for the same feature overwrites an earlier one.
void WordFeatures::Appender::count_features(size_t known, FeatureList& features) {
  ids_[known] = kernels::kNoId;
  const size_t first = features.ids.size();
  features.ids.resize(first + known);
  ends_.resize(known);
  size_t distinct = 0;
  for (size_t i = 0; i < known; ++i) {
    features.ids[first + distinct] = ids_[i];
    ends_[distinct] = static_cast<uint32_t>(i + 1);
    distinct += ids_[i] != ids_[i + 1] ? 1 : 0;
  }
  features.ids.resize(first + distinct);
  features.values.resize(first + distinct);
  uint32_t begin = 0;
  for (size_t i = 0; i < distinct; ++i) {
    features.values[first + i] = static_cast<float>(ends_[i] - begin);
    begin = ends_[i];
  }
}

std::span<const std::string_view> WordColumns::Words::of(const CellReader& cells, std::span<const size_t> columns) {
  words_.clear();
  names_.clear();
  for (const size_t column : columns) {
    if (!words_.empty()) words_.emplace_back();
    std::string_view text = cells.cell(column);
    if (auto name = number_name(text)) text = names_.emplace_back(std::move(*name));
    for_each_word(text, is_space, [&](std::string_view word) { words_.push_back(word); });
  }
  return words_;
}

void WordColumns::count(const CellReader& cells, uint64_t record) {
  words_.count(counted_.of(cells, columns_), record);
}

class WordColumns::RecordAppender : public ColumnFeatures::Appender {
 public:
  explicit RecordAppender(const WordColumns& of) : of_(of), appender_(of.words_) {}

  void append(const CellReader& cells, FeatureList& features) override {
    const size_t first = features.values.size();
    appender_.append(words_.of(cells, of_.columns_), features);
    if (!of_.unit_) return;
    const std::span<float> values = std::span(features.values).subspan(first);
    double squares = 0;
    for (const float value : values) squares += double{value} * double{value};
    for (float& value : values) value *= inverse_length(squares);
  }

 private:
  const WordColumns& of_;
  WordFeatures::Appender appender_;
  Words words_;
};

std::unique_ptr<ColumnFeatures::Appender> WordColumns::appender() const {
  return std::make_unique<RecordAppender>(*this);
}

}  // namespace modelet::shard
