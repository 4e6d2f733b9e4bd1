// TableLayout: the meaning of the columns of a table with typed columns (formats table and criteo), from the
// notation of table.columns:
//
//   label:click            columns of 1 and 0; each is one label of the model, with the column's name
//   cat:c1..c26,device     categories: each value is a feature
//   bin:i1..i13            numbers, as one of table.bins ranges that hold equally many training samples
//   num:age                numbers, standardised
//   log:clicks             numbers, sign(x) ln(1 + |x|) standardised: for counts
//   cross:c1*c2            pairs (or more) of columns: each combination of values is a feature. Numbers are
//                          crossed by magnitude, in two ranges per octave
//   skip:id                not used
//
// a..b stands for names that count upwards (c1..c3 for c1,c2,c3), and a comma joins names. In a file without
// a header, columns lie in the order of their first mention. With a header they are found by name, and
// columns that are not mentioned are not used. A column may be mentioned more than once, for instance as a
// category and as a number.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"

namespace modelet {

inline constexpr size_t kMaxTableColumns = 4096;

enum class NumberKind { kBins, kStandardised, kLogarithm };

struct TableLayout {
  struct Number {
    size_t column;
    NumberKind kind;
    bool operator==(const Number&) const = default;
  };

  std::vector<std::string> columns;        // in the order of their first mention
  std::vector<size_t> labels, categories;  // columns
  std::vector<Number> numbers;
  // The components of each cross: an index in categories, or categories.size() + an index in numbers.
  std::vector<std::vector<size_t>> crosses;
};

// Throws UsageError that quotes the item and says what is wrong with it.
TableLayout parse_table_layout(std::span<const std::string> items);

// The columns of an experiment's table: its own or, if it names none and the format is criteo, those of the
// public Criteo click logs.
TableLayout table_layout(const Experiment::Table& table, DataFormat format);

}  // namespace modelet
