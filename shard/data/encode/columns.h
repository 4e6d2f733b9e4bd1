// What the columns of a table are for (formats columns, csv, table and criteo): ColumnPlan for an encoder, and Columns for
// questions to a model. Immutable: any thread may use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/experiment/column_use.h"
#include "base/experiment/experiment.h"
#include "shard/data/read/cells.h"
#include "shard/data/read/csv.h"

namespace modelet::shard {

// The columns that a format needs of a file, and where its labels are.
struct ColumnPlan {
  std::vector<WantedColumn> columns;
  ColumnsIn where = ColumnsIn::kHeader;
  CsvDialect dialect;
  // The place of the column of names of labels; without it, all columns with labels have 0 and 1.
  std::optional<size_t> target;
  bool takes_histories = false;  // as Columns
};
// The separator of several values in a cell, if a column of this use may have several.
std::optional<char> value_separator(const ColumnUse& use);
// UsageError if the format lacks columns. A format without columns has an empty plan.
ColumnPlan column_plan(const Encoding& encoding);

// The columns that a model of a table may be asked about, which are those without its labels. A question may name them,
// give their values as a list in this order, or give one text; all become a Row in this order (Encoder::open_rows).
// `where` is the place of a row, for messages; every error is a UsageError.
class Columns {
 public:
  static constexpr size_t kAbsent = SIZE_MAX;
  // A question may bring the earlier records of its entity under this name, unless it is that of a column: a list of objects
  // of columns and their values. In a Row it is JSON, and the last field.
  static constexpr const char* kHistory = "history";

  explicit Columns(const Encoding& encoding);

  DataFormat format() const { return format_; }
  // Empty: the model does not read columns.
  const std::vector<std::string>& names() const { return names_; }
  bool takes_histories() const { return takes_histories_; }
  // [names] between several values in a cell.
  const std::vector<std::optional<char>>& separators() const { return separators_; }

  // For each column its place among the names of a row, or kAbsent: the value is missing. Names of labels are
  // ignored, and so are other names if no column is absent. If one is absent, they may be misspelt: an error.
  std::vector<size_t> places(std::span<const std::string> named, const std::string& where) const;
  // Throws unless a row has a value for each column.
  void require_whole(size_t values, const std::string& where) const;
  // A row with a text in its first column of words.
  Row row_of(std::string text, const std::string& where) const;

 private:
  std::string list() const;

  DataFormat format_;
  std::vector<std::string> names_, labels_;
  std::vector<std::optional<char>> separators_;
  bool takes_histories_ = false;
};

}  // namespace modelet::shard
