// BestModel: knows which of the states that a run has validated is the best, and whether continuing is
// worthwhile. Every rank keeps one, and from the same figures all decide the same. A plain value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace modelet::agent {

class BestModel {
 public:
  // Adds the `figures` (name -> number) of the weights after `step`. The figure `metric` decides: the
  // highest is the best, and among equals the first is kept. NaN (auc if the held-out samples have one class
  // only) is worse than any number.
  void add(uint64_t step, const nlohmann::json& figures, const std::string& metric);

  uint64_t step() const { return step_; }  // step of the best state; 0: nothing was validated yet
  const nlohmann::json& figures() const { return figures_; }
  // Whether the last `patience` evaluations (0: no limit) have found nothing better.
  bool exhausted(uint32_t patience) const { return patience > 0 && worse_since_ >= patience; }

  // For checkpoints. restore() throws FormatError if `state` was not returned by state() for this metric.
  nlohmann::json state() const;
  static BestModel restore(const nlohmann::json& state, const std::string& metric);

 private:
  uint64_t step_ = 0;
  nlohmann::json figures_ = nlohmann::json::object();
  uint32_t worse_since_ = 0;  // evaluations since the best one
};

}  // namespace modelet::agent
