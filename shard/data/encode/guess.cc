#include "shard/data/encode/guess.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/text/parse_double.h"
#include "base/text/printable.h"
#include "base/text/suggest.h"
#include "base/text/value_name.h"
#include "shard/data/encode/columns.h"
#include "shard/data/read/cells.h"
#include "shard/data/read/csv.h"
#include "shard/data/read/date.h"
#include "shard/data/read/json_lines.h"
#include "shard/data/read/line_reader.h"
#include "shard/data/read/word_scan.h"

namespace modelet::shard {
namespace {

constexpr uint64_t kMostRecords = 20000, kMostCells = 4'000'000, kMostGuessBytes = uint64_t{64} << 20;
constexpr size_t kMostParts = 1 << 20;  // that are told apart, of a column
constexpr uint64_t kFewestOfIds = 50;  // so many different values are an id; fewer may be chance
constexpr double kOften = 0.1;         // share of the values that have a separator
constexpr size_t kExamples = 3, kExampleBytes = 40;
constexpr std::array kSeparators = {std::pair('|', Delimiter::kPipe), std::pair(';', Delimiter::kSemicolon)};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Not "007", which is a code.
std::optional<double> plain_number(std::string_view text) {
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  if (digits.size() > 1 && digits[0] == '0' && is_digit(digits[1])) return std::nullopt;
  double value = 0;
  const auto [end, error] = parse_double(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

uint64_t value_hash(std::string_view value) { return XXH3_64bits(value.data(), value.size()); }

// A text that a key of an experiment can have as its name.
bool can_be_written(std::string_view name) {
  constexpr size_t kMostBytes = 1024;
  return !name.empty() && name.size() <= kMostBytes && printable(name, kMostBytes) == name;
}

// What is known of the values of a column.
class ValuesOfColumn {
 public:
  void add(std::string_view value) {
    if (value.empty()) {
      ++missing_;
      return;
    }
    // A word for a missing number is a value of a category.
    const bool missing_number = is_missing_number(value) || value == "NaT";
    missing_numbers_ += missing_number ? 1 : 0;
    ++values_;
    const bool is_new = distinct_.insert(value_hash(value)).second;
    if (is_new && examples_.size() < kExamples) examples_.push_back(printable(value, kExampleBytes));
    size_t words = 0;
    for_each_word(value, is_space, [&](std::string_view) { ++words; });
    words_ += words;
    one_word_ += words == 1 ? 1 : 0;
    if (!missing_number) {
      const auto number = plain_number(value);
      numbers_ += number ? 1 : 0;
      whole_ = whole_ && number && std::trunc(*number) == *number;
      if (number) {
        ascends_ = ascends_ && (values_ == 1 || *number > last_);
        last_ = *number;
        least_ = std::min(least_, *number);
        most_ = std::max(most_, *number);
      }
      dates_ += parse_date(value) ? 1 : 0;
    }
    for (size_t i = 0; i < kSeparators.size(); ++i) {
      size_t parts = 0;
      for_each_part(value, kSeparators[i].first, [&](std::string_view part) {
        ++parts;
        if (parts_[i].size() < kMostParts) parts_[i].insert(value_hash(part));
      });
      of_parts_[i] += parts;
      separated_[i] += value.find(kSeparators[i].first) != std::string_view::npos ? 1 : 0;
    }
  }

  // The separator of several values in a cell, whose parts come again.
  Delimiter separator() const {
    for (size_t i = 0; i < kSeparators.size(); ++i)
      if (static_cast<double>(separated_[i]) >= kOften * static_cast<double>(values_) && separated_[i] > 0 &&
          2 * parts_[i].size() <= of_parts_[i])
        return kSeparators[i].second;
    return Delimiter::kNone;
  }

  void guess(GuessedColumn& column) const {
    const std::string all = "all " + std::to_string(values_) + " values ";
    const uint64_t known = values_ - missing_numbers_;
    const auto choose = [&](ColumnType type, std::string reason) {
      column.use = {.type = type};
      column.reason = std::move(reason);
    };
    if (values_ == 0) return choose(ColumnType::kIgnore, "every value is missing");
    if (known > 0 && dates_ == known) return choose(ColumnType::kDate, all + "are dates");
    if (known > 0 && numbers_ == known) {
      const bool consecutive = most_ - least_ < 2 * static_cast<double>(known);
      if (whole_ && are_ids() && (ascends_ || consecutive))
        return choose(ColumnType::kIgnore, "every record has another whole number, as an id");
      return choose(ColumnType::kNumber, all + "are numbers");
    }
    if (const Delimiter several = separator(); several != Delimiter::kNone) {
      choose(ColumnType::kCategory, "many values are lists whose parts come again");
      column.use.separator = several;
      return;
    }
    constexpr double kWords = 0.95, kMostWords = 6;
    const auto count = static_cast<double>(values_);
    if (static_cast<double>(one_word_) >= kWords * count) {
      if (are_ids()) return choose(ColumnType::kIgnore, "every record has another word, as an id");
      return choose(ColumnType::kCategory, "values are single words, " + std::to_string(distinct_.size()) + " different");
    }
    if (2 * distinct_.size() <= values_ && static_cast<double>(words_) <= kMostWords * count)
      return choose(ColumnType::kCategory,
                    std::to_string(distinct_.size()) + " different values among " + std::to_string(values_));
    choose(ColumnType::kText, "values of " + std::to_string((words_ + values_ / 2) / values_) + " words in the mean");
  }

  void describe(GuessedColumn& column) const {
    column.missing = missing_;
    column.distinct = distinct_.size();
    column.examples = examples_;
  }

 private:
  bool are_ids() const { return values_ >= kFewestOfIds && distinct_.size() == values_; }

  uint64_t values_ = 0, missing_ = 0, missing_numbers_ = 0, words_ = 0, one_word_ = 0, numbers_ = 0, dates_ = 0;
  bool whole_ = true, ascends_ = true;  // of numbers
  double last_ = 0, least_ = HUGE_VAL, most_ = -HUGE_VAL;
  std::unordered_set<uint64_t> distinct_;
  std::array<std::unordered_set<uint64_t>, kSeparators.size()> parts_;
  std::array<uint64_t, kSeparators.size()> of_parts_{}, separated_{};
  std::vector<std::string> examples_;
};

// The names of the columns: those of the first record or, without a header, numbers.
std::vector<FoundKey> columns_of(std::span<const std::string_view> first, bool header) {
  std::vector<FoundKey> columns;
  for (const std::string_view field : first)
    columns.push_back({.name = header ? std::string(field) : std::to_string(columns.size() + 1)});
  return columns;
}

void require_given(const ColumnUses& given, const std::vector<FoundKey>& columns, const std::string& text) {
  for (const auto& [name, use] : given) {
    if (use.type == ColumnType::kIgnore || std::ranges::count(columns, name, &FoundKey::name) > 0) continue;
    std::vector<std::string> known;
    for (const FoundKey& each : columns) known.push_back(printable(each.name, kExampleBytes));
    throw MisfitError(text + ": columns." + name + ": there is no column " + shard::quoted(name) + " among " +
                      std::to_string(columns.size()) + suggestion(name, known) +
                      (columns.size() == 1 ? "; is csv.delimiter right?" : ""));
  }
}

// What is to be read of JSON Lines: lists with the separator of their column.
std::vector<JsonKey> keys_of(const std::vector<FoundKey>& columns, const ColumnUses& given,
                             const std::set<std::string>& open, const std::string& text) {
  std::vector<JsonKey> keys;
  for (const FoundKey& column : columns) {
    const auto use = given.find(column.name);
    const bool is_open = use == given.end() || open.contains(column.name);
    const std::optional<char> own =
        column.separator == Delimiter::kNone ? std::nullopt : std::optional(character(column.separator));
    JsonKey key{.name = column.name, .separator = is_open ? own : value_separator(use->second)};
    key.used = use == given.end() || use->second.type != ColumnType::kIgnore;
    if (key.used && column.nested > 0)
      throw FormatError(text + ":" + std::to_string(column.nested) + ": column " + shard::quoted(column.name) +
                        ": the value is an object or a list of lists: give its parts columns of their own, or leave the "
                        "column out with columns." + column.name + "=ignore");
    keys.push_back(std::move(key));
  }
  return keys;
}

}  // namespace

Delimiter guess_delimiter(const std::filesystem::path& text) {
  LineReader lines(text);
  std::string_view line;
  if (!lines.next(line) || line.find(',') != std::string_view::npos) return Delimiter::kComma;
  Delimiter best = Delimiter::kComma;
  ptrdiff_t most = 0;
  for (const Delimiter each : {Delimiter::kTab, Delimiter::kSemicolon, Delimiter::kPipe})
    if (const ptrdiff_t count = std::ranges::count(line, character(each)); count > most) {
      most = count;
      best = each;
    }
  return best;
}

ColumnGuess guess_columns(const std::filesystem::path& text, const Experiment::Csv& csv, const ColumnUses& given,
                          const std::set<std::string>& open) {
  CsvReader records(LineReader(text), csv_dialect(csv));
  std::span<const std::string_view> fields;
  const bool is_json = records.is_json();
  std::vector<FoundKey> columns;
  if (is_json) {
    columns = find_json_keys(text, kMostRecords, kMostGuessBytes);
  } else if (records.next(fields)) {
    columns = columns_of(fields, csv.header);
  } else {
    throw FormatError(text.string() + ": the file is empty, records are expected");
  }
  require_given(given, columns, text.string());
  if (is_json) records.read_keys(keys_of(columns, given, open, text.string()));
  bool more = !is_json && !csv.header ? true : records.next(fields);
  ColumnGuess guess{.json = is_json};
  std::vector<ValuesOfColumn> values(columns.size());
  const uint64_t most = std::min(kMostRecords, std::max<uint64_t>(kMostCells / columns.size(), 1));
  for (; more && guess.records < most && records.bytes() < kMostGuessBytes; more = records.next(fields)) {
    ++guess.records;
    for (size_t column = 0; column < values.size(); ++column) values[column].add(fields[column]);
  }
  guess.whole = !more;
  std::unordered_map<std::string_view, size_t> times;
  for (const FoundKey& each : columns) ++times[each.name];
  for (size_t column = 0; column < values.size(); ++column) {
    GuessedColumn& guessed = guess.columns.emplace_back();
    guessed.name = columns[column].name;
    values[column].describe(guessed);
    const bool lists = columns[column].lists;
    const auto known = given.find(guessed.name);
    if (times[guessed.name] > 1) {
      guessed.reason = "several columns have this name";
    } else if (known != given.end()) {
      guessed.use = known->second;
      guessed.reason = "given";
      if (open.contains(guessed.name))
        guessed.use.separator = lists ? columns[column].separator : values[column].separator();
    } else if (!can_be_written(guessed.name)) {
      guessed.reason = "an experiment cannot have its name as a key";
    } else if (lists) {
      guessed.use = {.type = ColumnType::kCategory, .separator = columns[column].separator};
      guessed.reason = "values are lists";
    } else {
      values[column].guess(guessed);
    }
  }
  return guess;
}

}  // namespace modelet::shard
