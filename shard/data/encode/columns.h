// Columns: the columns that a model of CSV or of a table may be asked about, which are those without its labels.
// A question may name them, give their values as a list in this order, or give one text; all become a Row in this
// order (Encoder::open_rows). Immutable: any thread may use it. `where` is the place of a row, for messages; every
// error is a UsageError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/read/csv.h"

namespace modelet::shard {

class Columns {
 public:
  static constexpr size_t kAbsent = SIZE_MAX;

  explicit Columns(const Encoding& encoding);

  DataFormat format() const { return format_; }
  // Empty: the model does not read columns.
  const std::vector<std::string>& names() const { return names_; }

  // For each column its place among the names of a row, or kAbsent: the value is missing. Names of labels are
  // ignored, and so are other names if no column is absent. If one is absent, they may be misspelt: an error.
  std::vector<size_t> places(std::span<const std::string> named, const std::string& where) const;
  // Throws if a row does not have a value for each column.
  void require_whole(const Row& row, const std::string& where) const;
  // A row with a text in its first column of words.
  Row row_of(std::string text, const std::string& where) const;

 private:
  std::string list() const;

  DataFormat format_;
  std::vector<std::string> names_, labels_;
};

}  // namespace modelet::shard
