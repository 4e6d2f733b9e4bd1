// CsvReader: strict streaming reader of CSV (RFC 4180), of tab-separated text and of JSON Lines, or of rows that are in memory.
// It knows fields, not what they mean; a header is a record like any other.
//
//   a,"b ""quoted"", with a delimiter",      three fields: a | b "quoted", with a delimiter | (empty)
//
// A quoted field may span lines; a line end inside it is LF, whatever the file has. All records have as many
// fields as the first. CRLF, no line end at the end of the file, empty lines after the last record and a
// UTF-8 byte-order mark are accepted. Everything else is a FormatError "file:line: what was found and what to
// do": another number of fields, a quote inside an unquoted field, text after a closing quote, a quote that
// is not closed, more than kMaxCsvFields fields, a line or a record over kMaxLineBytes, UTF-16.
//
// Files may be plain, .xz or .gz. Memory: the longest record. One thread uses a reader.
//
// Text that begins like JSON Lines (shard/data/read/json_lines.h) has no header: the fields of a record are the values of
// the keys that read_keys() was given, which has to be called first.
//
// The fields of rows in memory hold any text: a delimiter, a quote or a line end in them means nothing. CRLF
// becomes LF as in a quoted field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/read/json_lines.h"
#include "shard/data/read/line_reader.h"

namespace modelet::shard {

inline constexpr size_t kMaxCsvFields = 65536;

struct CsvDialect {
  char delimiter = ',';
  bool quotes = true;  // fields may be quoted; false: a quote is a character like any other
};
// Tab-separated values know no quoting (IANA text/tab-separated-values).
inline constexpr CsvDialect kTabSeparated{.delimiter = '\t', .quotes = false};

// The character of a delimiter that is not kNone.
char character(Delimiter delimiter);
// Quotes have their meaning for every delimiter except the tab.
CsvDialect csv_dialect(const Experiment::Csv& options);

using Row = std::vector<std::string>;  // fields

class CsvReader {
 public:
  CsvReader(LineReader text, CsvDialect dialect) : lines_(std::move(text)), dialect_(dialect) {}
  // `name` stands for the rows in messages.
  CsvReader(std::vector<Row> rows, std::string name) : rows_(std::move(rows)), name_(std::move(name)) {}

  // Whether the text is JSON Lines. Before the first record; may wait for text of a stream.
  bool is_json() { return lines_ && is_json_lines(*lines_); }
  void read_keys(std::vector<JsonKey> keys) { keys_ = std::move(keys); }
  // Whether the last record has a value of this key, by its place.
  bool has_key(size_t key) const { return there_[key]; }

  // The fields of the next record, at least one; valid until the next call. False at the end.
  bool next(std::span<const std::string_view>& fields);

  // What the fields of the last record are parts of.
  std::string_view text() const { return {fields_.front().begin(), fields_.back().end()}; }

  bool ready() const { return !lines_ || lines_->ready(); }  // whether next() has at least a line
  uint64_t line() const { return line_; }  // on which the last record begins, or its row; from 1
  uint64_t bytes() const { return lines_ ? lines_->bytes() : 0; }      // of text read, decompressed
  double fraction() const { return lines_ ? lines_->fraction() : 0; }  // part of the file read, in [0, 1]
  const std::string& name() const { return lines_ ? lines_->name() : name_; }

  // Throws FormatError "name:line: what" about the last record, for one of several rows "name[index]: what".
  [[noreturn]] void fail(const std::string& what) const;

 private:
  bool next_json();
  bool next_line(std::string_view& line);
  void split(std::string_view line);
  void split_quoted(std::string_view line);
  void join(const Row& row);
  void take_fields();
  std::string_view read_quoted_field(std::string_view rest);
  void check_field_limit(size_t fields) const;

  std::optional<LineReader> lines_;  // empty: rows
  CsvDialect dialect_;
  std::vector<JsonKey> keys_;  // empty: not JSON Lines
  std::vector<bool> there_;    // [keys] in the last record
  Row cells_;
  std::vector<Row> rows_;
  std::string name_;
  uint64_t line_ = 0;
  size_t width_ = 0;  // fields of the first record; 0 before it
  std::vector<std::string_view> fields_;
  std::string text_;          // of a row or a record with quotes: its fields without them, joined
  std::vector<size_t> ends_;  // of the fields in text_
};

}  // namespace modelet::shard
