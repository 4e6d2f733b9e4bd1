// SparsePlan: what a SparseIndex is built from: the order of the rows, and the settings. To find them takes
// seconds for a large model, so it is kept in a file beside the checkpoint.
//
// The file is a safetensors file with the key of what it was made for, and a checksum. It is only a copy: a
// file that is missing, damaged, or made for another model or other queries is ignored, and a failure to
// write it is ignored. It holds only the plan for the last queries.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "shard/inference/sparse_index.h"
#include "shard/inference/sparse_tuner.h"

namespace modelet::shard {

struct SparsePlan {
  TunedSparse tuned;
  RowOrder order;  // its first tuned.settings.rows neurons are needed
};

inline constexpr const char* kSparsePlanFile = "sparse_plan.safetensors";  // in the checkpoint's folder

// `key` stands for the model and the queries. `neurons` and `width` are those of the output layer.
std::optional<SparsePlan> read_sparse_plan(const std::filesystem::path& file, uint64_t key, size_t neurons,
                                           size_t width);
void write_sparse_plan(const std::filesystem::path& file, uint64_t key, const SparsePlan& plan);

}  // namespace modelet::shard
