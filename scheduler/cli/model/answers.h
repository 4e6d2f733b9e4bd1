// What `modelet predict` and `modelet serve` make of a model's answers alike. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "shard/inference/explanation.h"
#include "shard/inference/model.h"
#include "shard/inference/nearest_samples.h"

namespace modelet::cli {

// Removes the answers below `threshold`: of their probability if the model has a calibration, else of their score.
void keep_above(std::optional<double> threshold, const shard::Model& model,
                std::vector<shard::ScoredLabel>& answers);

// How answers are explained.
struct WantedReasons {
  size_t features = 0;                              // with the largest shares; 0: not at all
  size_t examples = 0;                              // training samples that speak for a label
  const shard::NearestSamples* samples = nullptr;   // those of the training, if there are examples
};

// What a score consists of: the features with the largest shares, and what the others and everything else add; and examples.
nlohmann::ordered_json reasons_json(const shard::Model& model, const shard::Sample& sample, uint32_t label,
                                    const WantedReasons& wanted);
double share_of_others(const shard::Explanation& explanation, size_t most);

}  // namespace modelet::cli
