#include "shard/data/encode/columns.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/experiment/table_layout.h"

namespace modelet::shard {

Columns::Columns(const Encoding& encoding) : format_(encoding.format) {
  if (format_ == DataFormat::kCsv) {
    names_ = encoding.csv.text;
    labels_ = {encoding.csv.labels};
  } else if (format_ == DataFormat::kTable || format_ == DataFormat::kCriteo) {
    const TableLayout layout = table_layout(encoding.table, format_);
    for (size_t column = 0; column < layout.columns.size(); ++column)
      (std::ranges::count(layout.labels, column) > 0 ? labels_ : names_).push_back(layout.columns[column]);
  }
}

std::string Columns::list() const {
  std::string list;
  for (const std::string& name : names_) list += (list.empty() ? "" : ", ") + name;
  return list;
}

std::vector<size_t> Columns::places(std::span<const std::string> named, const std::string& where) const {
  if (names_.empty())
    throw UsageError(
        where + ": this model was not trained on a table and does not read columns: give texts or features");
  std::unordered_map<std::string_view, size_t> place_of;  // a question may have very many names
  for (size_t place = 0; place < named.size(); ++place) place_of.emplace(named[place], place);
  std::vector<size_t> places;
  for (const std::string& name : names_) {
    const auto found = place_of.find(name);
    places.push_back(found == place_of.end() ? kAbsent : found->second);
  }
  if (std::ranges::count(places, kAbsent) == 0) return places;
  for (const std::vector<std::string>* known : {&names_, &labels_})
    for (const std::string& name : *known) place_of.erase(name);
  for (const std::string& name : named)
    if (place_of.contains(name))
      throw UsageError(where + ": this model has no column " + shard::quoted(name) + "; it has " + list() +
                       ": correct the name, or leave it out");
  return places;
}

void Columns::require_whole(const Row& row, const std::string& where) const {
  if (names_.empty())
    throw UsageError(
        where + ": this model was not trained on a table and does not read columns: give texts or features");
  if (row.size() != names_.size())
    throw UsageError(where + ": " + std::to_string(row.size()) + " values for the " +
                     std::to_string(names_.size()) + " columns of this model, " + list() +
                     ": give one for each, or name them");
}

Row Columns::row_of(std::string text, const std::string& where) const {
  if (format_ != DataFormat::kCsv)
    throw UsageError(where + ": this model reads columns, not a text: give the values of " + list());
  Row row(names_.size());
  row.front() = std::move(text);
  return row;
}

}  // namespace modelet::shard
