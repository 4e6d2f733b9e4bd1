#include "shard/data/batch/split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace modelet::shard {

std::vector<uint32_t> all_rows(size_t rows) {
  MODELET_CHECK(rows <= std::numeric_limits<uint32_t>::max());
  std::vector<uint32_t> all(rows);
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

std::vector<uint32_t> spread_out(std::span<const uint32_t> rows, size_t count) {
  std::vector<uint32_t> chosen(count);
  for (size_t i = 0; i < count; ++i) chosen[i] = rows[i * rows.size() / count];
  return chosen;
}

void shuffle_rows(std::vector<uint32_t>& rows, Rng rng) {
  for (size_t left = rows.size(); left > 1; --left)
    std::swap(rows[left - 1], rows[rng.below(static_cast<uint32_t>(left))]);
}

RowSplit split_rows(size_t rows, double validation, uint64_t seed) {
  RowSplit split{.train = all_rows(rows)};
  if (validation == 0) return split;
  const auto held_out =
      std::max<size_t>(1, static_cast<size_t>(std::llround(validation * static_cast<double>(rows))));
  if (held_out >= rows)
    throw UsageError("data.validation holds " + std::to_string(held_out) + " of " + std::to_string(rows) +
                     " training samples out and leaves none to train on; lower it, or use more data");
  shuffle_rows(split.train, Rng(seed, {kStreamValidation}));
  split.validation.assign(split.train.end() - static_cast<std::ptrdiff_t>(held_out), split.train.end());
  split.train.resize(rows - held_out);
  std::ranges::sort(split.train);
  std::ranges::sort(split.validation);
  return split;
}

}  // namespace modelet::shard
