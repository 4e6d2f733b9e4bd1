// Chooses the cheapest SparseSettings that finds the best label of nearly every known query.
//
// For each setting that it tries, it counts for how many queries the row with the highest score is found. The
// cost of a setting is computed (memory lines that a query touches, in units of a row of the head) and not
// measured, so the same model and queries always give the same settings.
// docs/decisions/0007-sparse-inference.md says why.
#pragma once

#include <cstdint>

#include "shard/inference/sparse_index.h"

namespace modelet::shard {

struct TunedSparse {
  SparseSettings settings;
  double recall = 0;  // share of the queries whose best row it finds
  double cost = 0;    // in rows of the head
};

// recall_wanted in (0, 1]; scoring every row always reaches it.
TunedSparse tune_sparse(const Scoring& scoring, const RowOrder& order, const QuerySample& queries,
                        uint64_t seed, double recall_wanted, ThreadPool& pool);

}  // namespace modelet::shard
