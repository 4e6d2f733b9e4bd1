#include "scheduler/cli/model/answers.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace modelet::cli {

void keep_above(std::optional<double> threshold, const shard::Model& model,
                std::vector<shard::ScoredLabel>& answers) {
  if (!threshold) return;
  std::erase_if(answers, [&](const shard::ScoredLabel& each) {
    return (model.calibration() ? each.probability : double{each.score}) < *threshold;
  });
}

nlohmann::ordered_json reasons_json(const shard::Explanation& explanation, size_t most) {
  auto features = nlohmann::ordered_json::array();
  for (size_t f = 0; f < std::min(most, explanation.features.size()); ++f) {
    const shard::FeatureShare& each = explanation.features[f];
    features.push_back({{"feature", each.feature}, {"value", each.value}, {"share", each.share}});
  }
  return {{"features", std::move(features)},
          {"other_features", share_of_others(explanation, most)},
          {"rest", explanation.rest}};
}

double share_of_others(const shard::Explanation& explanation, size_t most) {
  double sum = 0;
  for (size_t f = most; f < explanation.features.size(); ++f) sum += explanation.features[f].share;
  return sum;
}

}  // namespace modelet::cli
