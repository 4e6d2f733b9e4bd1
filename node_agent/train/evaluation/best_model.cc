#include "node_agent/train/evaluation/best_model.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace modelet::agent {
namespace {

// A figure that is no number (the held-out samples cannot give it) is worse than any number, and as good as
// another of its kind. JSON has no NaN: in a checkpoint it is null.
double worth(const nlohmann::json& figure) {
  const double value = figure.is_null() ? std::numeric_limits<double>::quiet_NaN() : figure.get<double>();
  return std::isnan(value) ? -std::numeric_limits<double>::infinity() : value;
}

}  // namespace

void BestModel::add(uint64_t step, const nlohmann::json& figures, const std::string& metric) {
  MODELET_CHECK(step > step_);
  if (step_ > 0 && worth(figures.at(metric)) <= worth(figures_.at(metric))) {
    ++worse_since_;
    return;
  }
  step_ = step;
  figures_ = figures;
  worse_since_ = 0;
}

nlohmann::json BestModel::state() const {
  return {{"step", step_}, {"figures", figures_}, {"worse_since", worse_since_}};
}

BestModel BestModel::restore(const nlohmann::json& state, const std::string& metric) {
  BestModel result;
  try {
    result.step_ = state.at("step").get<uint64_t>();
    result.figures_ = state.at("figures");
    if (result.step_ > 0) worth(result.figures_.at(metric));
    result.worse_since_ = state.at("worse_since").get<uint32_t>();
  } catch (const nlohmann::json::exception& e) {
    throw FormatError(std::string("the checkpoint's record of validation: ") + e.what());
  }
  return result;
}

}  // namespace modelet::agent
