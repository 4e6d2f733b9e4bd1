#include "shard/data/encode/text_encoder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/array/padding.h"
#include "base/array/prefetch.h"
#include "base/error.h"
#include "shard/data/encode/ngrams.h"
#include "shard/data/encode/occurrences.h"
#include "shard/data/read/line_reader.h"
#include "shard/kernels/ids.h"

namespace modelet::shard {
namespace {

constexpr size_t kMaxLabelBytes = 4096;

}  // namespace

// The contents of the training text.
struct TextEncoder::Counts {
  uint64_t samples = 0;
  AlignedVector<Occurrences> buckets;  // [buckets]
  StringTable label_names;             // in the order of the text
  std::vector<Occurrences> labels;     // of these
};

std::unique_ptr<TextEncoder> TextEncoder::fit(const Encoding& options, const std::filesystem::path& text,
                                              const FitProgress& progress) {
  return fit(options, *open_records(options, LineReader(text), LabelsIn::kRequired), progress);
}

std::unique_ptr<TextEncoder> TextEncoder::fit(const Encoding& options, TextRecords& records,
                                              const FitProgress& progress) {
  constexpr uint64_t kRecordsBetweenReports = 4096;
  Counts counts;
  counts.buckets.resize(options.text.buckets);
  NgramHasher hasher(options.text);
  TextRecord record;
  // The buckets of a sample are counted when those of the next one are requested: by then they have arrived
  // from memory.
  std::vector<uint32_t> ids, fetched;
  const auto count_fetched = [&] {
    for (const uint32_t bucket : fetched) counts.buckets[bucket].add(counts.samples);
  };
  while (records.next(record)) {
    ids.clear();
    hasher.append(record.words, ids);
    for (const uint32_t bucket : ids) prefetch_line(&counts.buckets[bucket]);
    count_fetched();
    fetched.swap(ids);
    ++counts.samples;
    for (const std::string_view label : record.labels) {
      if (label.size() > kMaxLabelBytes)
        records.fail("the label " + quoted(label) + " has " + std::to_string(label.size()) +
                     " bytes, more than " + std::to_string(kMaxLabelBytes) +
                     "; is this the right column or prefix?");
      const uint32_t id = counts.label_names.insert(label);
      counts.labels.resize(counts.label_names.size());
      counts.labels[id].add(counts.samples);
    }
    if (progress && counts.samples % kRecordsBetweenReports == 0)
      progress(records.bytes(), records.fraction());
  }
  count_fetched();
  if (counts.labels.empty())
    records.fail("the training text has no label in " + std::to_string(counts.samples) +
                 " samples; is data.format right, and text.label_prefix or csv.labels?");
  std::unique_ptr<TextEncoder> encoder(new TextEncoder(options));
  encoder->choose_features(counts);
  if (encoder->buckets_.empty())
    records.fail("no feature occurs in text.min_count = " + std::to_string(options.text.min_count) +
                 " training samples; lower it, or check that the text holds words");
  encoder->choose_labels(counts);
  encoder->number_buckets();
  return encoder;
}

void TextEncoder::choose_features(const Counts& counts) {
  const uint32_t needed = std::max(options_.text.min_count, 1u);
  const auto chosen = [&](const Occurrences& bucket) { return bucket.samples >= needed; };
  buckets_.resize(static_cast<size_t>(std::ranges::count_if(counts.buckets, chosen)) + 1);
  size_t features = 0;
  for (uint32_t bucket = 0; bucket < counts.buckets.size(); ++bucket) {
    buckets_[features] = bucket;  // the next bucket overwrites it unless it is chosen
    features += chosen(counts.buckets[bucket]) ? 1 : 0;
  }
  buckets_.resize(features);
  if (options_.text.weight != TextWeight::kTfIdf) return;
  for (const uint32_t bucket : buckets_)
    idf_.push_back(
        static_cast<float>(1 + std::log((1 + static_cast<double>(counts.samples)) /
                                        (1 + static_cast<double>(counts.buckets[bucket].samples)))));
}

// Frequent labels first, so that a list of names is useful to read; ties as in the text.
void TextEncoder::choose_labels(const Counts& counts) {
  std::vector<uint32_t> order(counts.labels.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return counts.labels[a].samples > counts.labels[b].samples;
  });
  for (const uint32_t label : order) labels_.insert(counts.label_names.at(label));
}

void TextEncoder::number_buckets() {
  constexpr uint32_t kBlock = kernels::kRankBlock;
  blocks_.assign(2 * (options_.text.buckets / kBlock + 1), 0);
  for (const uint32_t bucket : buckets_) blocks_[2 * (bucket / kBlock)] |= 1u << bucket % kBlock;
  for (size_t i = 2; i < blocks_.size(); i += 2)
    blocks_[i + 1] = blocks_[i - 1] + static_cast<uint32_t>(std::popcount(blocks_[i - 2]));
}

TextEncoder::TextEncoder(const SafetensorsFile& state)
    : options_(encoder_options(state)), labels_(encoder_labels(state)) {
  const auto buckets = list_in<uint32_t>(state, "buckets");
  bool good = !buckets.empty() && buckets.back() < options_.text.buckets;
  for (size_t i = 1; i < buckets.size(); ++i) good &= buckets[i - 1] < buckets[i];
  if (!good) throw FormatError(state.path().string() + ": damaged: its buckets do not ascend");
  buckets_.assign(buckets.begin(), buckets.end());
  if (options_.text.weight == TextWeight::kTfIdf) {
    const auto idf = state.values<float>("idf", {buckets_.size()});
    // Checked, because a prepared file must not hold what is not finite.
    if (!std::all_of(idf.begin(), idf.end(), [](float v) { return v > 0 && v < 100; }))
      throw FormatError(state.path().string() + ": damaged: an idf is out of range");
    idf_.assign(idf.begin(), idf.end());
  }
  number_buckets();
}

std::vector<std::byte> TextEncoder::state() const {
  std::vector<Tensor> tensors = label_tensors(labels_);
  tensors.push_back(tensor("buckets", {buckets_.size()}, buckets_));
  if (!idf_.empty()) tensors.push_back(tensor("idf", {idf_.size()}, idf_));
  return safetensors_bytes(tensors, encoder_metadata(options_));
}

class TextEncoder::Reader : public SampleReader {
 public:
  Reader(const TextEncoder& encoder, std::unique_ptr<TextRecords> records)
      : encoder_(encoder), records_(std::move(records)), hasher_(encoder.options_.text) {}

  uint64_t features() const override { return encoder_.buckets_.size(); }
  uint64_t labels() const override { return encoder_.labels_.size(); }
  bool ready() const override { return records_->ready(); }
  uint64_t bytes() const override { return records_->bytes(); }
  double fraction() const override { return records_->fraction(); }
  uint64_t unknown_labels() const override { return unknown_labels_; }

  bool next(Sample& sample) override {
    if (!records_->next(record_)) return false;
    if (++rows_ >= kMaxCount) records_->fail("more than 2^31 - 1 samples; divide the file");
    encode_words();
    encode_labels();
    sample = {features_, values_, labels_};
    return true;
  }

 private:
  void encode_words() {
    ids_.clear();
    hasher_.append(record_.words, ids_);
    const size_t ngrams = ids_.size();
    ids_.resize(ngrams + kVectorFloats);
    const size_t known = kernels::member_ranks(encoder_.blocks_.data(), ids_.data(), ngrams, ids_.data());
    kernels::sort_ids(ids_.data(), known);
    count_features(known);
    if (encoder_.idf_.empty()) return;
    for (size_t i = 0; i < features_.size(); ++i)
      values_[i] = (1 + std::log(values_[i])) * encoder_.idf_[features_[i]];
  }

  // Writes the different features among the first `known` of the sorted ids_ to features_, and how often each
  // occurs to values_. No branch depends on an id: a later entry for the same feature overwrites an earlier
  // one.
  void count_features(size_t known) {
    ids_[known] = kernels::kNoId;
    features_.resize(known);
    ends_.resize(known);
    size_t distinct = 0;
    for (size_t i = 0; i < known; ++i) {
      features_[distinct] = ids_[i];
      ends_[distinct] = static_cast<uint32_t>(i + 1);
      distinct += ids_[i] != ids_[i + 1] ? 1 : 0;
    }
    features_.resize(distinct);
    values_.resize(distinct);
    uint32_t begin = 0;
    for (size_t i = 0; i < distinct; ++i) {
      values_[i] = static_cast<float>(ends_[i] - begin);
      begin = ends_[i];
    }
  }

  void encode_labels() {
    labels_.clear();
    for (const std::string_view name : record_.labels) {
      const uint32_t label = encoder_.labels_.find(name);
      if (label == StringTable::kNone)
        ++unknown_labels_;
      else
        labels_.push_back(label);
    }
    std::sort(labels_.begin(), labels_.end());
    labels_.erase(std::unique(labels_.begin(), labels_.end()), labels_.end());
  }

  const TextEncoder& encoder_;
  std::unique_ptr<TextRecords> records_;
  NgramHasher hasher_;
  TextRecord record_;
  uint64_t rows_ = 0, unknown_labels_ = 0;
  std::vector<uint32_t> ids_;   // of the sample's n-grams: buckets, then features
  std::vector<uint32_t> ends_;  // where each feature ends in the sorted ids_
  std::vector<uint32_t> features_, labels_;
  std::vector<float> values_;
};

std::unique_ptr<SampleReader> TextEncoder::open(LineReader text) const {
  return open(open_records(options_, std::move(text), LabelsIn::kOptional));
}

std::unique_ptr<SampleReader> TextEncoder::open(std::unique_ptr<TextRecords> records) const {
  return std::make_unique<Reader>(*this, std::move(records));
}

std::unique_ptr<SampleReader> TextEncoder::open_rows(CsvReader rows) const {
  return open(shard::open_rows(options_, std::move(rows)));
}

}  // namespace modelet::shard
