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

nlohmann::ordered_json reasons_json(const shard::Model& model, const shard::Sample& sample, uint32_t label,
                                    const WantedReasons& wanted) {
  const shard::Explanation explanation = shard::explain(model, sample, label);
  const size_t most = wanted.features;
  auto features = nlohmann::ordered_json::array();
  for (size_t f = 0; f < std::min(most, explanation.features.size()); ++f) {
    const shard::FeatureShare& each = explanation.features[f];
    features.push_back({{"feature", each.feature}, {"value", each.value}, {"share", each.share}});
  }
  nlohmann::ordered_json reasons = {{"features", std::move(features)},
                                    {"other_features", share_of_others(explanation, most)},
                                    {"rest", explanation.rest}};
  if (wanted.examples == 0) return reasons;
  auto& examples = reasons["examples"] = nlohmann::ordered_json::array();
  for (const auto& found : wanted.samples->find(sample, label, wanted.examples))
    examples.push_back({{"sample", found.row}, {"cosine", found.cosine}});
  return reasons;
}

double share_of_others(const shard::Explanation& explanation, size_t most) {
  double sum = 0;
  for (size_t f = most; f < explanation.features.size(); ++f) sum += explanation.features[f].share;
  return sum;
}

}  // namespace modelet::cli
