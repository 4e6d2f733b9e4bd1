#include "scheduler/cli/model/interpreter.h"

#include <span>

namespace modelet::cli {

void Interpreter::interpret(const shard::TopK& best, size_t sample, size_t k,
                            std::vector<ScoredLabel>& found) const {
  found.clear();
  const auto labels = best.labels(sample);
  const auto scores = best.scores(sample);
  for (size_t i = 0; i < std::min(k, best.k()) && labels[i] != shard::TopK::kNoLabel; ++i)
    found.push_back({.label = labels[i],
                     .score = scores[i],
                     .name = has_names() ? std::string_view(names_[labels[i]]) : std::string_view()});
  if (!calibration_) return;
  std::vector<shard::LogOdds> odds(found.size());
  shard::uncalibrated(loss_, scores, odds);
  for (size_t i = 0; i < odds.size(); ++i) found[i].probability = shard::probability(*calibration_, odds[i]);
}

}  // namespace modelet::cli
