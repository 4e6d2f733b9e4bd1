#include "shard/data/read/table_records.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/text/parse_double.h"
#include "base/text/value_name.h"

namespace modelet::shard {
namespace {

// The salt of a column follows from its name: equal values give the same features in whatever order columns
// lie.
uint64_t salt_of(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

// Whole numbers of a few digits, such as counts, without std::from_chars. False for anything else.
bool parse_short_count(std::string_view text, float& value) {
  constexpr size_t kMaxDigits = 7;  // below 2^24: floats are exact
  if (text.size() > kMaxDigits) return false;
  uint32_t number = 0;
  for (const char c : text) {
    const auto digit = static_cast<unsigned char>(c - '0');
    if (digit > 9) return false;
    number = number * 10 + digit;
  }
  value = static_cast<float>(number);
  return true;
}

}  // namespace

TableRecords::TableRecords(const TableLayout& layout, bool header, uint32_t hash_features, CsvReader csv,
                           LabelsIn labels)
    : layout_(layout),
      hash_features_(hash_features),
      labels_(labels),
      csv_(std::move(csv)),
      is_label_(layout.columns.size()),
      hashes_(layout.categories.size()) {
  for (const size_t column : layout.labels) is_label_[column] = true;
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
  for (size_t column = 0; column < layout.columns.size(); ++column) field_of_.push_back(column);
  width_ = layout.columns.size();
  if (header) read_header();
}

// From now on a record has only the fields of the other columns, in their order.
void TableRecords::leave_labels_out() {
  has_labels_ = false;
  size_t field = 0;
  for (size_t column = 0; column < field_of_.size(); ++column)
    if (!is_label_[column]) field_of_[column] = field++;
  width_ = field;
}

void TableRecords::read_header() {
  std::span<const std::string_view> names;
  if (!csv_.next(names)) throw FormatError(csv_.name() + ": the file is empty, a header is expected");
  // A header may have thousands of names, and comes with each question to a server.
  std::unordered_map<std::string_view, size_t> fields;
  std::unordered_set<std::string_view> twice;
  for (size_t field = 0; field < names.size(); ++field)
    if (!fields.emplace(names[field], field).second) twice.insert(names[field]);
  has_labels_ = labels_ == LabelsIn::kRequired || std::ranges::any_of(layout_.labels, [&](size_t label) {
                  return fields.contains(layout_.columns[label]);
                });
  for (size_t column = 0; column < layout_.columns.size(); ++column) {
    if (!has_labels_ && is_label_[column]) continue;
    const std::string_view name = layout_.columns[column];
    const auto it = fields.find(name);
    if (it == fields.end())
      csv_.fail("the header has no column " + quoted(name) + ", which table.columns mentions; its first is " +
                quoted(names.front()) + ". Is there a header, and is csv.delimiter right?");
    if (twice.contains(name)) csv_.fail("the header has the column " + quoted(name) + " twice; rename one");
    field_of_[column] = it->second;
  }
  width_ = names.size();
}

bool TableRecords::next(TableRecord& record) {
  if (!csv_.next(fields_)) return false;
  if (labels_ == LabelsIn::kOptional && has_labels_ && fields_.size() + layout_.labels.size() == width_)
    leave_labels_out();  // there is no header: it would have shown this
  if (fields_.size() != width_)
    csv_.fail(
        "the record has " + std::to_string(fields_.size()) + " fields, table.columns mentions " +
        std::to_string(width_) +
        " columns; is csv.delimiter right, and csv.header? data.format = criteo is tab-separated without a header");
  read_labels(record.labels);
  record.numbers.clear();
  for (const TableLayout::Number& number : layout_.numbers)
    record.numbers.push_back(read_number(number.column));
  hash_categories(record);
  return true;
}

void TableRecords::fail(size_t column, const std::string& what) const {
  csv_.fail("column " + quoted(std::string_view(layout_.columns[column])) + ": " + what);
}

void TableRecords::read_labels(std::vector<uint32_t>& labels) const {
  labels.clear();
  if (!has_labels_) return;
  for (uint32_t label = 0; label < layout_.labels.size(); ++label) {
    const std::string_view value = field(layout_.labels[label]);
    const auto name = value.size() == 1 ? std::nullopt : category_name(value);
    if (value == "1" || name == "1" || name == "True")
      labels.push_back(label);
    else if (value != "0" && name != "0" && name != "False")
      fail(layout_.labels[label], "a label must be 0 or 1, found " + quoted(value));
  }
}

float TableRecords::read_number(size_t column) const {
  const std::string_view text = field(column);
  if (text.empty()) return std::numeric_limits<float>::quiet_NaN();
  float value = 0;
  if (parse_short_count(text, value)) return value;
  double wide = 0;  // so that a number too small for a float is rounded, as by any other reader
  const char* const end = text.data() + text.size();
  const auto [rest, error] = parse_double(text.data(), end, wide);
  if (error == std::errc::invalid_argument || rest != end || !std::isfinite(wide)) {
    if (is_missing_number(text)) return std::numeric_limits<float>::quiet_NaN();
    if (const auto truth = truth_value(text)) return *truth ? 1.0f : 0.0f;
    fail(column, "expected a number, or nothing if it is missing, found " + quoted(text));
  }
  value = static_cast<float>(wide);
  if (error != std::errc{} || !std::isfinite(value))
    fail(column, "the number " + quoted(text) + " is beyond the range of 32-bit floats");
  return value;
}

// The range of a float is its sign, its exponent and the first bit of its fraction: ranges begin at 1, 1.5,
// 2, 3, 4, 6 and so on.
uint64_t TableRecords::hash_of_component(size_t component, const TableRecord& record) const {
  if (component < hashes_.size()) return hashes_[component];
  constexpr int kBitsWithin = 22;
  constexpr uint64_t kMissingNumber = uint64_t{1} << 32;
  const float value = record.numbers[component - hashes_.size()];
  return std::isnan(value) ? kMissingNumber : std::bit_cast<uint32_t>(value) >> kBitsWithin;
}

void TableRecords::hash_categories(TableRecord& record) {
  std::vector<uint32_t>& buckets = record.buckets;
  buckets.clear();
  const bool number_names = may_hold_number_names(csv_.text());
  for (size_t i = 0; i < layout_.categories.size(); ++i) {
    std::string_view value = field(layout_.categories[i]);
    std::optional<std::string> name;
    if ((number_names || may_be_truth_value(value)) && (name = category_name(value))) value = *name;
    hashes_[i] = XXH3_64bits_withSeed(value.data(), value.size(), category_salts_[i]);
    buckets.push_back(value.empty() ? TableRecord::kMissing : bucket_of(hashes_[i]));
  }
  for (size_t i = 0; i < layout_.crosses.size(); ++i) {
    uint64_t hash = cross_salts_[i];
    for (const size_t component : layout_.crosses[i])
      hash = mix64(hash ^ hash_of_component(component, record));
    buckets.push_back(bucket_of(hash));
  }
}

}  // namespace modelet::shard
