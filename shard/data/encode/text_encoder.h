// TextEncoder: records of words and labels (formats text and csv) -> samples. A feature is a bucket of hashed
// n-grams that occurs in enough training samples. Features are numbered by bucket, labels by falling
// frequency. Words and labels that training did not have are left out; such labels are counted. The state,
// besides that of every encoder (shard/data/encode/encoder.h):
//
//   buckets U32 [features]   bucket of a feature, ascending
//   idf F32 [features]       with weight tfidf
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/array/aligned.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/encode/string_table.h"
#include "shard/data/read/text_records.h"

namespace modelet::shard {

class TextEncoder : public Encoder {
 public:
  static std::unique_ptr<TextEncoder> fit(const Encoding& options, const std::filesystem::path& text,
                                          const FitProgress& progress);
  static std::unique_ptr<TextEncoder> fit(const Encoding& options, TextRecords& records,
                                          const FitProgress& progress);
  explicit TextEncoder(const SafetensorsFile& state);

  std::vector<std::byte> state() const override;
  std::unique_ptr<SampleReader> open(LineReader text) const override;
  std::unique_ptr<SampleReader> open(std::unique_ptr<TextRecords> records) const;
  std::unique_ptr<SampleReader> open_rows(CsvReader rows) const override;

 private:
  class Reader;
  struct Counts;

  explicit TextEncoder(const Encoding& options) : options_(options) {}
  void choose_features(const Counts& counts);
  void choose_labels(const Counts& counts);
  void number_buckets();

  Encoding options_;
  StringTable labels_;
  std::vector<uint32_t> buckets_;
  std::vector<float> idf_;

  // The feature of a bucket is its rank among buckets_ (kernels::member_ranks): blocks_ takes 1/16 of the
  // memory that an id for each bucket would take, so it stays in the second-level cache.
  AlignedVector<uint32_t> blocks_;
};

}  // namespace modelet::shard
