// TableValues: the cells of a table with typed columns (base/experiment/table_layout.h) as numbers: the values of
// number columns, and a bucket for each category and cross. Nothing here depends on other records: the encoder does what
// has to be fitted on training data (shard/data/encode/features/table_features.h). One thread uses it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/experiment/table_layout.h"
#include "shard/data/read/cells.h"

namespace modelet::shard {

struct TableRecord {
  static constexpr uint32_t kMissing = UINT32_MAX;  // a bucket: the field is empty

  std::vector<float> numbers;     // [layout.numbers] finite, or NaN: the field is empty
  std::vector<uint32_t> buckets;  // [layout.categories, layout.crosses] in [0, hash_features)
};

// The place of a hash among buckets.
constexpr uint32_t bucket_of(uint64_t hash, uint64_t buckets) {
  return static_cast<uint32_t>(((hash >> 32) * buckets) >> 32);
}
// The hash of a value of a category, which has one name in all notations. `may_be_number`: as
// CellReader::may_hold_number_names().
uint64_t category_hash(std::string_view value, uint64_t salt, bool may_be_number);

class TableValues {
 public:
  // Columns of `layout`, which must outlive this, are those of the cells.
  TableValues(const TableLayout& layout, uint32_t hash_features);

  // Throws FormatError "file:line: column 'name': what, what to do".
  void read(const CellReader& cells, TableRecord& record);

 private:
  void hash_categories(const CellReader& cells, TableRecord& record);
  uint64_t hash_of_component(size_t component, const TableRecord& record) const;

  const TableLayout& layout_;
  uint64_t hash_features_;
  std::vector<uint64_t> category_salts_,
      cross_salts_;               // so that equal values of two columns are two features
  std::vector<uint64_t> hashes_;  // [layout.categories] of the record's values
};

}  // namespace modelet::shard
