#include "shard/data/read/table_values.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cmath>
#include <optional>
#include <string>

#include "base/rng.h"
#include "base/text/value_name.h"

namespace modelet::shard {
namespace {

// The salt of a column follows from its name: equal values give the same features in whatever order columns
// lie.
uint64_t salt_of(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

}  // namespace

uint64_t category_hash(std::string_view value, uint64_t salt, bool may_be_number) {
  std::optional<std::string> name;
  if ((may_be_number || may_be_truth_value(value)) && (name = category_name(value))) value = *name;
  return XXH3_64bits_withSeed(value.data(), value.size(), salt);
}

TableValues::TableValues(const TableLayout& layout, uint32_t hash_features)
    : layout_(layout), hash_features_(hash_features), hashes_(layout.categories.size()) {
  for (const size_t column : layout.categories) category_salts_.push_back(salt_of(layout.columns[column]));
  for (const auto& cross : layout.crosses) {
    uint64_t salt = cross.size();
    for (const size_t component : cross) {
      const size_t categories = layout.categories.size();
      const size_t column = component < categories ? layout.categories[component]
                                                   : layout.numbers[component - categories].column;
      salt = mix64(salt ^ salt_of(layout.columns[column]));
    }
    cross_salts_.push_back(salt);
  }
}

void TableValues::read(const CellReader& cells, TableRecord& record) {
  record.numbers.clear();
  for (const TableLayout::Number& number : layout_.numbers) record.numbers.push_back(cells.number(number.column));
  hash_categories(cells, record);
}

// The range of a float is its sign, its exponent and the first bit of its fraction: ranges begin at 1, 1.5,
// 2, 3, 4, 6 and so on.
uint64_t TableValues::hash_of_component(size_t component, const TableRecord& record) const {
  if (component < hashes_.size()) return hashes_[component];
  constexpr int kBitsWithin = 22;
  constexpr uint64_t kMissingNumber = uint64_t{1} << 32;
  const float value = record.numbers[component - hashes_.size()];
  return std::isnan(value) ? kMissingNumber : std::bit_cast<uint32_t>(value) >> kBitsWithin;
}

void TableValues::hash_categories(const CellReader& cells, TableRecord& record) {
  std::vector<uint32_t>& buckets = record.buckets;
  buckets.clear();
  const bool number_names = !hashes_.empty() && cells.may_hold_number_names();
  for (size_t i = 0; i < layout_.categories.size(); ++i) {
    const std::string_view value = cells.cell(layout_.categories[i]);
    hashes_[i] = category_hash(value, category_salts_[i], number_names);
    buckets.push_back(value.empty() ? TableRecord::kMissing : bucket_of(hashes_[i], hash_features_));
  }
  for (size_t i = 0; i < layout_.crosses.size(); ++i) {
    uint64_t hash = cross_salts_[i];
    for (const size_t component : layout_.crosses[i])
      hash = mix64(hash ^ hash_of_component(component, record));
    buckets.push_back(bucket_of(hash, hash_features_));
  }
}

}  // namespace modelet::shard
