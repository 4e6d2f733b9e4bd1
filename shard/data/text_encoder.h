// TextEncoder: records of words and labels (formats text and csv) -> samples. A feature is a bucket of hashed
// n-grams that occurs in enough training samples; features are numbered by bucket, labels by falling
// frequency. Words and labels that training did not have are left out, labels are counted. State, beside that
// of every encoder (shard/data/encoder.h):
//
//   buckets U32 [features]   bucket of a feature, ascending
//   idf F32 [features]       with weight tfidf
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/aligned.h"
#include "shard/data/encoder.h"
#include "shard/data/string_table.h"
#include "shard/data/text_records.h"

namespace modelet::shard {

class TextEncoder : public Encoder {
 public:
  static std::unique_ptr<TextEncoder> fit(const Experiment& options, const std::filesystem::path& text,
                                          const FitProgress& progress);
  static std::unique_ptr<TextEncoder> fit(const Experiment& options, TextRecords& records,
                                          const FitProgress& progress);
  explicit TextEncoder(const SafetensorsFile& state);

  std::vector<std::byte> state() const override;
  std::unique_ptr<SampleReader> open(const std::filesystem::path& text) const override;
  std::unique_ptr<SampleReader> open(std::unique_ptr<TextRecords> records) const;

 private:
  class Reader;
  struct Counts;

  explicit TextEncoder(const Experiment& options) : options_(options) {}
  void choose_features(const Counts& counts);
  void choose_labels(const Counts& counts);
  void number_buckets();

  Experiment options_;
  StringTable labels_;
  std::vector<uint32_t> buckets_;
  std::vector<float> idf_;

  // A bucket's feature is its rank among buckets_ (kernels::member_ranks): 1/16 of what an id for each bucket
  // would take, so that it stays in the second cache.
  AlignedVector<uint32_t> blocks_;
};

}  // namespace modelet::shard
