#include "shard/data/read/text_records.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <numeric>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text/printable.h"
#include "base/text/suggest.h"
#include "base/text/value_name.h"
#include "shard/data/read/csv.h"
#include "shard/data/read/line_reader.h"
#include "shard/data/read/word_scan.h"

namespace modelet::shard {
namespace {

// White space as in fastText: also vertical tab, form feed and the zero byte.
constexpr auto is_space = [](uint8_t c) {
  return (c == ' ') | (static_cast<uint8_t>(c - '\t') <= '\r' - '\t') | (c == 0);
};

class LabelledLines : public TextRecords {
 public:
  LabelledLines(const Encoding& options, LineReader text)
      : lines_(std::move(text)), prefix_(options.text.label_prefix) {}

  bool next(TextRecord& record) override {
    std::string_view line;
    if (!lines_.next(line)) return false;
    record.labels.clear();
    record.words.clear();
    for_each_word(line, is_space, [&](std::string_view word) {
      // Most words differ in the first byte and need no call to compare them.
      if (word.front() != prefix_.front() || !word.starts_with(prefix_)) {
        record.words.push_back(word);
      } else if (word.size() == prefix_.size()) {
        lines_.fail("a label without a name: '" + prefix_ + "' must be followed by one");
      } else {
        record.labels.push_back(word.substr(prefix_.size()));
      }
    });
    return true;
  }

  void fail(const std::string& what) const override { lines_.fail(what); }
  bool ready() const override { return lines_.ready(); }
  uint64_t bytes() const override { return lines_.bytes(); }
  double fraction() const override { return lines_.fraction(); }

 private:
  LineReader lines_;
  std::string prefix_;
};

constexpr size_t kMostShown = 40;  // bytes of a column's name

class CsvRecords : public TextRecords {
 public:
  CsvRecords(const Encoding& options, LineReader text, LabelsIn labels)
      : options_(options.csv), csv_(std::move(text), csv_dialect(options.csv)) {
    if (options_.labels.empty() || options_.text.empty())
      throw UsageError(csv_.name() + ": csv.labels and csv.text must name the columns of labels and words");
    at_end_ = !csv_.next(fields_);
    if (at_end_)
      throw FormatError(csv_.name() + ": the file is empty, " +
                        (options_.header ? "a header is" : "records are") + " expected");
    for (const std::string& name : options_.text) text_columns_.push_back(column("csv.text", name));
    label_column_ = find_column(options_.labels);
    if (!label_column_ && !(labels == LabelsIn::kOptional && options_.header))
      no_column("csv.labels", options_.labels);
    if (options_.header) at_end_ = !csv_.next(fields_);
  }
  // The fields of the rows are those of the columns of words.
  CsvRecords(const Encoding& options, CsvReader rows) : options_(options.csv), csv_(std::move(rows)) {
    text_columns_.resize(options_.text.size());
    std::iota(text_columns_.begin(), text_columns_.end(), size_t{0});
    at_end_ = !csv_.next(fields_);
  }

  bool next(TextRecord& record) override {
    if (at_end_) return false;
    // The first record was read in the constructor, to find the columns, and is returned only now.
    if (begun_ && !csv_.next(fields_)) {
      at_end_ = true;
      return false;
    }
    begun_ = true;
    record.labels.clear();
    record.words.clear();
    names_.clear();
    if (label_column_) split_labels(fields_[*label_column_], record.labels);
    for (const size_t column : text_columns_) {
      if (!record.words.empty()) record.words.emplace_back();
      for_each_word(named(fields_[column]), is_space,
                    [&](std::string_view word) { record.words.push_back(word); });
    }
    return true;
  }

  void fail(const std::string& what) const override { csv_.fail(what); }
  bool ready() const override { return at_end_ || !begun_ || csv_.ready(); }
  uint64_t bytes() const override { return csv_.bytes(); }
  double fraction() const override { return csv_.fraction(); }

 private:
  // The index of the column with this name in the header. If there is none, `name` may be its number, from 1.
  std::optional<size_t> find_column(const std::string& name) const {
    if (options_.header) {
      const auto found = std::find(fields_.begin(), fields_.end(), name);
      if (found != fields_.end() && std::find(found + 1, fields_.end(), name) != fields_.end())
        csv_.fail("the header has the column " + shard::quoted(name) +
                  " twice; rename one, or name it by its number");
      if (found != fields_.end()) return static_cast<size_t>(found - fields_.begin());
    }
    size_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    const bool is_number = error == std::errc{} && end == name.data() + name.size();
    if (is_number && number >= 1 && number <= fields_.size()) return number - 1;
    return std::nullopt;
  }

  size_t column(const std::string& key, const std::string& name) const {
    const auto found = find_column(name);
    if (!found) no_column(key, name);
    return *found;
  }

  [[noreturn]] void no_column(const std::string& key, const std::string& name) const {
    std::vector<std::string> names;
    for (const std::string_view field : fields_) names.push_back(printable(field, kMostShown));
    const char* const cure = fields_.size() == 1 ? "; is csv.delimiter right?" : "";
    throw MisfitError(
        csv_.name() + ": " + key + ": there is no column " + shard::quoted(name) + " among " +
        std::to_string(fields_.size()) +
        (options_.header ? suggestion(name, names) : "; columns count from 1, names need csv.header") + cure);
  }

  static std::string_view without_blanks(std::string_view text) {
    const size_t first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
  }

  // A number's name or the text itself; valid until the next record.
  std::string_view named(std::string_view text) {
    auto name = number_name(text);
    return name ? names_.emplace_back(std::move(*name)) : text;
  }

  void split_labels(std::string_view field, std::vector<std::string_view>& labels) {
    if (options_.label_separator == Delimiter::kNone) {
      if (!field.empty()) labels.push_back(named(field));
      return;
    }
    const char separator = character(options_.label_separator);
    while (!field.empty()) {
      const size_t end = std::min(field.find(separator), field.size());
      if (const std::string_view label = without_blanks(field.substr(0, end)); !label.empty())
        labels.push_back(named(label));
      field.remove_prefix(std::min(end + 1, field.size()));
    }
  }

  Experiment::Csv options_;
  CsvReader csv_;
  std::span<const std::string_view> fields_;
  bool begun_ = false, at_end_ = false;
  std::optional<size_t> label_column_;
  std::vector<size_t> text_columns_;
  std::deque<std::string> names_;  // of numbers in the record
};

}  // namespace

std::unique_ptr<TextRecords> open_records(const Encoding& options, LineReader text, LabelsIn labels) {
  if (options.format == DataFormat::kCsv)
    return std::make_unique<CsvRecords>(options, std::move(text), labels);
  return std::make_unique<LabelledLines>(options, std::move(text));
}

std::unique_ptr<TextRecords> open_rows(const Encoding& options, CsvReader rows) {
  return std::make_unique<CsvRecords>(options, std::move(rows));
}

bool has_label(std::string_view line, std::string_view prefix) {
  bool found = false;
  for_each_word(line, is_space, [&](std::string_view word) {
    found |= word.size() > prefix.size() && word.starts_with(prefix);
  });
  return found;
}

}  // namespace modelet::shard
