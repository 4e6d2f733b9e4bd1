// CellReader: the records of a table (shard/data/read/csv.h) as the cells of the columns that somebody needs. It finds
// the columns, and reads what a cell says about a number, a truth or a date (docs/data_format.md, "Values"). What values
// become is the encoder's affair. One thread uses a reader.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shard/data/read/csv.h"
#include "shard/data/read/sample_reader.h"

namespace modelet::shard {

struct WantedColumn {
  std::string name;
  std::string key;        // of the experiment that names it, for messages
  bool is_label = false;  // only records with labels have it
  std::optional<char> separator = {};  // between several values in a cell
  bool is_history = false;  // JSON that a record may bring (CellReader::history())
};

// Where a file has its columns.
enum class ColumnsIn : uint8_t {
  kHeader,  // the first record has the names; a column that is not among them may be called by its number, from 1
  kNumber,  // there is no header, and names are numbers, from 1
  kOrder,   // there is no header, and a record has exactly the wanted columns, in their order
};

class CellReader {
 public:
  // Throws an Error if a column is missing or there twice. Where labels are optional, the columns of all labels may be
  // missing, from a header or from a record in order. Columns of JSON Lines are keys, which a record may lack.
  CellReader(std::vector<WantedColumn> wanted, ColumnsIn where, CsvReader csv, LabelsIn labels);

  bool next();  // false at the end
  // At the end: throws an Error if no record had one of the columns.
  void require_all_columns() const;

  // Of the record, by the place among the wanted columns; valid until the next record.
  std::string_view cell(size_t column) const { return fields_[field_of_[column]]; }
  std::string_view name(size_t column) const { return wanted_[column].name; }
  // What a record of JSON Lines or in order has in the last wanted column, if that is one of histories.
  std::string_view history() const;
  bool has_labels() const { return has_labels_; }
  // Whether a cell of the record may be a number with another name (base/text/value_name.h).
  bool may_hold_number_names() const;

  // NaN if it is missing.
  float number(size_t column) const;
  // Whether it is 1, in any notation; 0 otherwise.
  bool flag(size_t column) const;

  // Throws FormatError "file:line: column 'name': what".
  [[noreturn]] void fail(size_t column, const std::string& what) const;
  const CsvReader& csv() const { return csv_; }

 private:
  void find_columns(std::span<const std::string_view> names, bool header);
  std::string no_column(const WantedColumn& wanted, std::span<const std::string_view> names, bool header) const;
  void leave_labels_out();

  std::vector<WantedColumn> wanted_;
  ColumnsIn where_;
  CsvReader csv_;
  LabelsIn labels_;
  bool is_json_ = false, has_labels_ = true;
  std::vector<bool> seen_;  // [wanted] of JSON Lines
  size_t label_columns_ = 0, width_ = 0;  // fields of a record in order
  std::span<const std::string_view> fields_;
  std::vector<size_t> field_of_;  // [wanted]
};

// The parts of a cell between separators, without blanks around them, and without empty ones. No separator: the cell.
template <class Visit>
void for_each_part(std::string_view cell, std::optional<char> separator, const Visit& visit) {
  if (!separator) {
    if (!cell.empty()) visit(cell);
    return;
  }
  constexpr std::string_view kBlanks = " \t";
  while (!cell.empty()) {
    const size_t end = std::min(cell.find(*separator), cell.size());
    std::string_view part = cell.substr(0, end);
    if (const size_t first = part.find_first_not_of(kBlanks); first != std::string_view::npos)
      visit(part.substr(first, part.find_last_not_of(kBlanks) + 1 - first));
    cell.remove_prefix(std::min(end + 1, cell.size()));
  }
}

}  // namespace modelet::shard
