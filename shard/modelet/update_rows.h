// update_rows(): one optimiser step of several rows that lie far apart in memory. The first rows are
// requested at once. Each of the others is requested while an earlier row is updated, a little at a time: the
// memory delivers most if the same amount is always under way (docs/decisions/0002-fetch-rows-ahead.md).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "base/array/prefetch.h"
#include "shard/modelet/parameters.h"

namespace modelet::shard {

struct ParameterRow {
  Parameters& parameters;
  size_t row;
};
struct RowGradient {
  float* weights;  // [cols]
  float bias;
};

// row(i) -> ParameterRow for i < known. gradients(i, span) writes the RowGradients of rows i, i + 1, ..., for
// i < count <= known; they stay valid until the next call. Rows past `count` are those that this thread will
// probably update next: the last updates of a call request them. The parameters must be as
// Parameters::update() requires.
template <class Row, class Gradients>
void update_rows(size_t count, size_t known, const UpdateRule& rule, const Row& row,
                 const Gradients& gradients) {
  if (count == 0) return;
  const size_t ahead = rows_ahead(row(0).parameters.cache_lines_of_row());
  for (size_t i = 0; i < std::min(known, ahead); ++i) row(i).parameters.prefetch(row(i).row);
  std::array<RowGradient, Parameters::kRowsAtOnce> gradient;
  std::array<Parameters::RowStep, Parameters::kRowsAtOnce> steps;
  for (size_t first = 0; first < count; first += steps.size()) {
    const size_t rows = std::min(count - first, steps.size());
    gradients(first, std::span(gradient).first(rows));
    for (size_t i = 0; i < rows; ++i) {
      const ParameterRow now = row(first + i);
      const void* later = nullptr;
      if (first + i + ahead < known) {
        const ParameterRow of_later = row(first + i + ahead);
        later = of_later.parameters.announce(of_later.row);
      }
      steps[i] = {&now.parameters, now.row, gradient[i].weights, gradient[i].bias, later};
    }
    Parameters::update(std::span(steps).first(rows), rule);
  }
}

}  // namespace modelet::shard
