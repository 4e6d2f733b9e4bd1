// ColumnUse: what a column of the format columns is, from its text in the section [columns]:
//
//   title = "text"                             words
//   tags = "category separator=pipe"           a value, or several with a separator; min_count=N instead of
//                                              table.min_count
//   price = "number"                           its range and its size; bins=N instead of table.bins
//   bought = "date"                            2026-11-30, 2026-11-30T09:41 or with seconds and Z; its parts and its size
//   product = "target separator=semicolon"     the sample's label, or several; any number of labels
//   clicked = "label"                          0 or 1: the sample has the label with the column's name
//   id = "ignore"                              not used
//   user = "entity", at = "time windows=1,7"   whose record it is, and when: a date or a number; windows, in days or in the
//                                              unit of the numbers, over which the entity's earlier records are counted
//
// Plain values; pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/experiment/choices.h"

namespace modelet {

struct ColumnUse {
  ColumnType type = ColumnType::kIgnore;
  Delimiter separator = Delimiter::kNone;
  uint32_t min_count = 0, bins = 0;  // 0: those of [table]
  std::vector<float> windows;

  bool operator==(const ColumnUse&) const = default;
};

// Throws UsageError that quotes the text and says what is wrong with it.
ColumnUse parse_column_use(std::string_view text);
// The text that parse_column_use() reads.
std::string to_text(const ColumnUse& use);

// Whether records have labels in it.
constexpr bool has_labels(ColumnType type) { return type == ColumnType::kTarget || type == ColumnType::kLabel; }

using ColumnUses = std::map<std::string, ColumnUse>;  // by name
ColumnUses column_uses(const std::map<std::string, std::string>& columns);

// Throws UsageError unless there is one target, or labels, and a column with features or a history.
void require_trainable(const ColumnUses& uses);

}  // namespace modelet
