#include "shard/data/encode/columns.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/experiment/column_use.h"
#include "base/experiment/table_layout.h"

namespace modelet::shard {

namespace {

std::optional<char> separator_of(Delimiter delimiter) {
  return delimiter == Delimiter::kNone ? std::nullopt : std::optional(character(delimiter));
}

void plan_csv(const Encoding& encoding, ColumnPlan& plan) {
  if (encoding.csv.labels.empty() || encoding.csv.text.empty())
    throw UsageError("csv.labels and csv.text must name the columns of labels and words");
  for (const std::string& name : encoding.csv.text) plan.columns.push_back({name, "csv.text", false, kBetweenTexts});
  plan.target = plan.columns.size();
  plan.columns.push_back({encoding.csv.labels, "csv.labels", true, separator_of(encoding.csv.label_separator)});
}

void plan_table(const Encoding& encoding, ColumnPlan& plan) {
  const TableLayout layout = table_layout(encoding.table, encoding.format);
  for (const std::string& name : layout.columns) plan.columns.push_back({name, "table.columns"});
  for (const size_t label : layout.labels) plan.columns[label].is_label = true;
  const bool criteo = encoding.format == DataFormat::kCriteo;
  if (criteo) plan.dialect = kTabSeparated;
  if (criteo || !encoding.csv.header) plan.where = ColumnsIn::kOrder;
}

void plan_columns(const Encoding& encoding, ColumnPlan& plan) {
  const ColumnUses uses = column_uses(encoding.columns);
  bool any_time = false, name_is_taken = false;
  for (const auto& [name, use] : uses) {
    name_is_taken |= name == Columns::kHistory;
    any_time |= use.type == ColumnType::kTime;
    if (use.type == ColumnType::kIgnore) continue;
    if (use.type == ColumnType::kTarget) plan.target = plan.columns.size();
    plan.columns.push_back({name, "columns." + name, has_labels(use.type), value_separator(use)});
  }
  plan.takes_histories = any_time && !name_is_taken;
}

}  // namespace

std::optional<char> value_separator(const ColumnUse& use) {
  return use.type == ColumnType::kText ? kBetweenTexts : separator_of(use.separator);
}

ColumnPlan column_plan(const Encoding& encoding) {
  ColumnPlan plan{.where = encoding.csv.header ? ColumnsIn::kHeader : ColumnsIn::kNumber,
                  .dialect = csv_dialect(encoding.csv)};
  switch (encoding.format) {
    case DataFormat::kCsv:
      plan_csv(encoding, plan);
      break;
    case DataFormat::kTable:
    case DataFormat::kCriteo:
      plan_table(encoding, plan);
      break;
    case DataFormat::kColumns:
      plan_columns(encoding, plan);
      break;
    default:
      break;
  }
  return plan;
}

Columns::Columns(const Encoding& encoding) : format_(encoding.format) {
  const ColumnPlan plan = column_plan(encoding);
  takes_histories_ = plan.takes_histories;
  for (const WantedColumn& column : plan.columns) {
    if (column.is_label) {
      labels_.push_back(column.name);
    } else {
      names_.push_back(column.name);
      separators_.push_back(column.separator);
    }
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
  if (takes_histories_) place_of.erase(kHistory);
  for (const std::string& name : named)
    if (place_of.contains(name))
      throw UsageError(where + ": this model has no column " + shard::quoted(name) + "; it has " + list() +
                       ": correct the name, or leave it out");
  return places;
}

void Columns::require_whole(size_t values, const std::string& where) const {
  if (names_.empty())
    throw UsageError(
        where + ": this model was not trained on a table and does not read columns: give texts or features");
  if (values != names_.size())
    throw UsageError(where + ": " + std::to_string(values) + " values for the " +
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
