#include "shard/data/read/cells.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/text/parse_double.h"
#include "base/text/printable.h"
#include "base/text/suggest.h"
#include "base/text/value_name.h"

namespace modelet::shard {
namespace {

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

// A column's place by its number, from 1.
std::optional<size_t> numbered_place(const std::string& name, size_t columns) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc{} || end != name.data() + name.size() || number < 1 || number > columns)
    return std::nullopt;
  return number - 1;
}

}  // namespace

CellReader::CellReader(std::vector<WantedColumn> wanted, ColumnsIn where, CsvReader csv, LabelsIn labels)
    : wanted_(std::move(wanted)), where_(where), csv_(std::move(csv)), labels_(labels), width_(wanted_.size()) {
  for (size_t column = 0; column < wanted_.size(); ++column) {
    field_of_.push_back(column);
    label_columns_ += wanted_[column].is_label ? 1 : 0;
  }
  is_json_ = csv_.is_json();
  if (is_json_) {
    std::vector<JsonKey> keys;
    for (const WantedColumn& column : wanted_) keys.push_back({column.name, column.separator, !column.is_history});
    csv_.read_keys(std::move(keys));
    seen_.resize(wanted_.size());
    return;
  }
  if (where_ != ColumnsIn::kHeader) return;
  if (!csv_.next(fields_)) throw FormatError(csv_.name() + ": the file is empty, a header is expected");
  find_columns(fields_, true);
}

bool CellReader::next() {
  const bool first = csv_.line() == 0;
  if (!csv_.next(fields_)) return false;
  if (is_json_) {
    has_labels_ = labels_ == LabelsIn::kRequired;
    for (size_t column = 0; column < wanted_.size(); ++column) {
      if (!csv_.has_key(column)) continue;
      seen_[column] = true;
      has_labels_ |= wanted_[column].is_label;
    }
    return true;
  }
  if (where_ == ColumnsIn::kHeader) return true;
  if (where_ == ColumnsIn::kNumber) {
    if (first) find_columns(fields_, false);
    return true;
  }
  if (labels_ == LabelsIn::kOptional && has_labels_ && fields_.size() + label_columns_ == width_) leave_labels_out();
  if (fields_.size() != width_)
    csv_.fail("the record has " + std::to_string(fields_.size()) + " fields, " + wanted_.front().key + " mentions " +
              std::to_string(width_) +
              " columns; is csv.delimiter right, and csv.header? data.format = criteo is tab-separated without a header");
  return true;
}

void CellReader::require_all_columns() const {
  for (size_t column = 0; column < seen_.size(); ++column)
    if (!seen_[column])
      throw MisfitError(csv_.name() + ": " + wanted_[column].key + ": no record has a value of " +
                        shard::quoted(wanted_[column].name));
}

void CellReader::find_columns(std::span<const std::string_view> names, bool header) {
  // A header may have thousands of names, and comes with each question to a server.
  std::unordered_map<std::string_view, size_t> fields;
  std::unordered_set<std::string_view> twice;
  if (header)
    for (size_t field = 0; field < names.size(); ++field)
      if (!fields.emplace(names[field], field).second) twice.insert(names[field]);
  std::vector<std::optional<size_t>> found;
  bool any_label = false;
  for (const WantedColumn& wanted : wanted_) {
    if (twice.contains(wanted.name))
      csv_.fail("the header has the column " + shard::quoted(wanted.name) +
                " twice; rename one, or call it by its number");
    const auto named = fields.find(wanted.name);
    found.push_back(named == fields.end() ? numbered_place(wanted.name, names.size()) : named->second);
    any_label |= wanted.is_label && found.back();
  }
  has_labels_ = any_label || labels_ == LabelsIn::kRequired || !header;
  for (size_t column = 0; column < wanted_.size(); ++column) {
    if (!has_labels_ && wanted_[column].is_label) continue;
    if (wanted_[column].is_history) continue;
    if (!found[column]) throw MisfitError(no_column(wanted_[column], names, header));
    field_of_[column] = *found[column];
  }
}

std::string CellReader::no_column(const WantedColumn& wanted, std::span<const std::string_view> names,
                                  bool header) const {
  constexpr size_t kMostShown = 40;  // bytes of a column's name
  std::vector<std::string> known;
  for (const std::string_view name : names) known.push_back(printable(name, kMostShown));
  return csv_.name() + ": " + wanted.key + ": there is no column " + shard::quoted(wanted.name) + " among " +
         std::to_string(names.size()) +
         (header ? suggestion(wanted.name, known) : "; columns count from 1, names need csv.header") +
         (names.size() == 1 ? "; is csv.delimiter right?" : "");
}

// From now on a record has only the fields of the other columns, in their order.
void CellReader::leave_labels_out() {
  has_labels_ = false;
  size_t field = 0;
  for (size_t column = 0; column < field_of_.size(); ++column)
    if (!wanted_[column].is_label) field_of_[column] = field++;
  width_ = field;
}

std::string_view CellReader::history() const {
  const size_t last = wanted_.size() - 1;
  return wanted_[last].is_history && (is_json_ || where_ == ColumnsIn::kOrder) ? cell(last) : std::string_view();
}

bool CellReader::may_hold_number_names() const { return modelet::may_hold_number_names(csv_.text()); }

void CellReader::fail(size_t column, const std::string& what) const {
  csv_.fail("column " + quoted(std::string_view(wanted_[column].name)) + ": " + what);
}

float CellReader::number(size_t column) const {
  const std::string_view text = cell(column);
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

bool CellReader::flag(size_t column) const {
  const std::string_view value = cell(column);
  const auto name = value.size() == 1 ? std::nullopt : category_name(value);
  if (value == "1" || name == "1" || name == "True") return true;
  if (value != "0" && name != "0" && name != "False")
    fail(column, "a label must be 0 or 1, found " + quoted(value));
  return false;
}

}  // namespace modelet::shard
