// Rows of a data set: all of them, in random order, or divided into those that are trained on and those that
// are held out. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"

namespace modelet::shard {

// 0 .. rows - 1. rows < 2^32.
std::vector<uint32_t> all_rows(size_t rows);

// `count` of the rows, at equal distances. count <= rows.size().
std::vector<uint32_t> spread_out(std::span<const uint32_t> rows, size_t count);

// A uniformly random order (Fisher-Yates).
void shuffle_rows(std::vector<uint32_t>& rows, Rng rng);

// Both ascending; together all rows, each once.
struct RowSplit {
  std::vector<uint32_t> train, validation;
};

// Holds out `validation` of the rows (a share in [0, 0.5], rounded to whole rows, at least one if it is not
// 0): a function of (rows, validation, seed). UsageError if nothing would be left to train on.
RowSplit split_rows(size_t rows, double validation, uint64_t seed);

}  // namespace modelet::shard
