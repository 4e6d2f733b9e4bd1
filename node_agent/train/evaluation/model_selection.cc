#include "node_agent/train/evaluation/model_selection.h"

#include <spdlog/fmt/fmt.h>

#include "base/error.h"
#include "base/system/log.h"
#include "node_agent/step/exchange/rounds.h"
#include "shard/data/batch/split.h"

namespace modelet::agent {
void add_figures(nlohmann::json& event, const std::vector<shard::Figure>& figures) {
  for (const shard::Figure& figure : figures) event[figure.name] = figure.value;
}

namespace {

std::string figures_text(const std::vector<shard::Figure>& figures) {
  std::string text;
  for (const shard::Figure& figure : figures)
    text += fmt::format("{}{} {:.4f}", text.empty() ? "" : ", ", figure.name, figure.value);
  return text;
}

}  // namespace

ModelSelection::ModelSelection(const Options& options, TrainingData& data)
    : metric_(options.metric),
      patience_(options.patience),
      data_(data),
      inverse_propensities_(
          shard::inverse_propensities(data.label_counts(), data.samples_of_run(), options.metrics)),
      auc_labels_(shard::has_auc(options.loss, data.train().labels()) ? data.train().labels() : 0) {
  if (data.validates()) require_metric();
}

shard::Metrics ModelSelection::metrics() const { return {kFigureRanks, inverse_propensities_, auc_labels_}; }

// log_loss cannot be chosen, because a smaller one is better, and with one label only AUC.
void ModelSelection::require_metric() const {
  std::string names;
  for (const shard::Figure& figure : metrics().figures()) {
    if (figure.name == "log_loss" || (data_.train().labels() == 1 && figure.name != "auc")) continue;
    if (figure.name == metric_) return;
    names += (names.empty() ? "" : ", ") + figure.name;
  }
  throw UsageError("train.metric is '" + metric_ + "'; this model can be judged by " + names);
}

// Scores of replicas may differ in their last bits if their processors differ, but decisions must not differ. So all
// use the figures of the first replica or, if each has held out samples of its own, the mean over all samples.
std::vector<double> ModelSelection::common_figures(RankGrid& grid, uint64_t step,
                                                   const std::vector<shard::Figure>& own) const {
  std::vector<double> values;
  for (const shard::Figure& figure : own) values.push_back(figure.value);
  if (!data_.of_replica()) return grid.of_first_replica(step, values);
  const auto rows = static_cast<double>(data_.validation_rows().size());
  for (double& value : values) value *= rows;
  values.push_back(rows);
  values = grid.sums(step, values);
  for (double& value : values) value /= values.back();
  values.pop_back();
  return values;
}

nlohmann::json ModelSelection::validate(Evaluator& evaluator, RankGrid& grid, uint64_t step,
                                        const Evaluator::Progress& progress) {
  shard::Metrics metrics = this->metrics();
  data_.complete_validation_labels(grid.replica(), {step - 1, kLabelRound});
  evaluator.evaluate(data_.train(), data_.validation_rows(), metrics, {step - 1, kEvaluationRound}, progress);
  std::vector<shard::Figure> of_all = metrics.figures();
  if (data_.of_replica()) log_for_owner("held-out samples of this node after step {}: {}", step, figures_text(of_all));
  const std::vector<double> values = common_figures(grid, step, of_all);
  for (size_t i = 0; i < values.size(); ++i) of_all[i].value = values[i];
  nlohmann::json figures = nlohmann::json::object();
  add_figures(figures, of_all);
  best_.add(step, figures, metric_);
  return figures;
}

bool ModelSelection::test(Evaluator& evaluator, uint64_t step, comm::Tag tag,
                          const Evaluator::Progress& progress) {
  if (tested_step_ == step || data_.test().rows() == 0) return false;
  shard::Metrics metrics = this->metrics();
  evaluator.evaluate(data_.test(), shard::all_rows(data_.test().rows()), metrics, tag, progress);
  test_figures_ = metrics.figures();
  tested_step_ = step;
  return true;
}

}  // namespace modelet::agent
