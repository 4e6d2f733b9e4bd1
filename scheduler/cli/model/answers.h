// What `modelet predict` and `modelet serve` make of a model's answers alike. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "shard/inference/explanation.h"
#include "shard/inference/model.h"

namespace modelet::cli {

// Removes the answers below `threshold`: of their probability if the model has a calibration, else of their score.
void keep_above(std::optional<double> threshold, const shard::Model& model,
                std::vector<shard::ScoredLabel>& answers);

// What a score consists of: the `most` features with the largest shares, and what the others and everything else add.
nlohmann::ordered_json reasons_json(const shard::Explanation& explanation, size_t most);
double share_of_others(const shard::Explanation& explanation, size_t most);

}  // namespace modelet::cli
