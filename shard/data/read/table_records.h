// TableRecords: the records of a table with typed columns (base/experiment/table_layout.h) as numbers: which
// labels are set, the values of number columns, and a bucket for each category and cross. Nothing here
// depends on other records: the encoder (shard/data/encode/table_encoder.h) does what has to be fitted on
// training data. One thread uses it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/experiment/table_layout.h"
#include "shard/data/read/csv.h"
#include "shard/data/read/sample_reader.h"

namespace modelet::shard {

struct TableRecord {
  static constexpr uint32_t kMissing = UINT32_MAX;  // a bucket: the field is empty

  std::vector<uint32_t> labels;   // places in layout.labels of those that are 1
  std::vector<float> numbers;     // [layout.numbers] finite, or NaN: the field is empty
  std::vector<uint32_t> buckets;  // [layout.categories, layout.crosses] in [0, hash_features)
};

class TableRecords {
 public:
  // `header`: the first record names the columns; FormatError if one is missing or there twice. Where labels
  // are optional, the columns of all labels may be missing. `layout` must outlive this.
  TableRecords(const TableLayout& layout, bool header, uint32_t hash_features, CsvReader csv,
               LabelsIn labels);

  // False at the end. Throws FormatError "file:line: column 'name': what, what to do".
  bool next(TableRecord& record);

  const CsvReader& csv() const { return csv_; }

 private:
  void read_header();
  void leave_labels_out();
  [[noreturn]] void fail(size_t column, const std::string& what) const;
  std::string_view field(size_t column) const { return fields_[field_of_[column]]; }
  void read_labels(std::vector<uint32_t>& labels) const;
  float read_number(size_t column) const;
  void hash_categories(TableRecord& record);
  uint64_t hash_of_component(size_t component, const TableRecord& record) const;
  uint32_t bucket_of(uint64_t hash) const {
    return static_cast<uint32_t>(((hash >> 32) * hash_features_) >> 32);
  }

  const TableLayout& layout_;
  uint64_t hash_features_;
  LabelsIn labels_;
  bool has_labels_ = true;
  size_t width_;  // fields of a record
  CsvReader csv_;
  std::span<const std::string_view> fields_;
  std::vector<size_t> field_of_;  // [layout.columns]
  std::vector<uint64_t> category_salts_,
      cross_salts_;               // so that equal values of two columns are two features
  std::vector<bool> is_label_;    // [layout.columns]
  std::vector<uint64_t> hashes_;  // [layout.categories] of the record's values
};

}  // namespace modelet::shard
