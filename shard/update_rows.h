// update_rows(): one optimiser step of several rows that lie far apart in memory. The first rows are asked
// for at once, every other one evenly while an earlier one is updated: the memory delivers most if there is
// always as much under way (docs/decisions/0002-fetch-rows-ahead.md).
#pragma once

#include <algorithm>
#include <cstddef>

#include "shard/parameters.h"
#include "shard/prefetch.h"

namespace modelet::shard {

struct ParameterRow {
  Parameters& parameters;
  size_t row;
};
struct RowGradient {
  float* weights;  // [cols]
  float bias;
};

// row(i) -> ParameterRow for i < known, gradient(i) -> RowGradient for i < count <= known, valid until the
// next. Rows past `count` are those that this thread will probably update next: the last ones of a call ask
// for them. Parameters of the same shape.
template <class Row, class Gradient>
void update_rows(size_t count, size_t known, const UpdateRule& rule, const Row& row,
                 const Gradient& gradient) {
  if (count == 0) return;
  const size_t ahead = rows_ahead(row(0).parameters.cache_lines_of_row());
  for (size_t i = 0; i < std::min(known, ahead); ++i) row(i).parameters.prefetch(row(i).row);
  for (size_t i = 0; i < count; ++i) {
    const auto announce = [](const ParameterRow& later) { return later.parameters.announce(later.row); };
    const void* later = i + ahead < known ? announce(row(i + ahead)) : nullptr;
    const RowGradient of_row = gradient(i);
    row(i).parameters.update(row(i).row, of_row.weights, of_row.bias, rule, later);
  }
}

}  // namespace modelet::shard
