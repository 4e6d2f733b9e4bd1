// ModelSelection: evaluates the model of a run, on the held-out samples if there are any, else on the test
// data. It knows which state so far is the best. Every rank keeps one, and all decide the same. Used by the
// training thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "node_agent/replicas/rank_grid.h"
#include "node_agent/train/data/training_data.h"
#include "node_agent/train/evaluation/best_model.h"
#include "node_agent/train/evaluation/evaluator.h"
#include "shard/inference/metrics.h"

namespace modelet::agent {

inline const std::vector<size_t> kFigureRanks = {1, 3, 5};  // the K of p_at_K and its like

// Adds figures to an event, as its members.
void add_figures(nlohmann::json& event, const std::vector<shard::Figure>& figures);

class ModelSelection {
 public:
  struct Options {
    Loss loss;
    Experiment::Metrics metrics;
    std::string metric;     // metric_of() the experiment
    uint32_t patience = 0;  // train.patience
  };
  // Throws UsageError if samples are held out and this model does not have the metric. `data` must outlive
  // this object.
  ModelSelection(const Options& options, TrainingData& data);

  // All ranks must call these after the same step. validate() returns the figures (name -> number) of the
  // held-out samples, which are the same on all ranks; it uses the rounds of rounds.h. test() uses rounds
  // from tag.round upwards. It does nothing and returns false if it was already called after this step, or
  // if there is no test data.
  nlohmann::json validate(Evaluator& evaluator, RankGrid& grid, uint64_t step,
                          const Evaluator::Progress& progress = {});
  bool test(Evaluator& evaluator, uint64_t step, comm::Tag tag, const Evaluator::Progress& progress = {});
  // The figures of the last test().
  const std::vector<shard::Figure>& test_figures() const { return test_figures_; }

  // The best state by validation; its step is 0 as long as there is none.
  const BestModel& best() const { return best_; }
  // Whether train.patience validations have found nothing better.
  bool exhausted() const { return best_.exhausted(patience_); }

  // For checkpoints. Throws FormatError if `state` is not best().state() of a run with this train.metric.
  void restore(const nlohmann::json& state) { best_ = BestModel::restore(state, metric_); }

 private:
  shard::Metrics metrics() const;
  std::vector<double> common_figures(RankGrid& grid, uint64_t step, const std::vector<shard::Figure>& own) const;
  void require_metric() const;

  const std::string metric_;
  const uint32_t patience_;
  TrainingData& data_;
  std::vector<float> inverse_propensities_;  // [labels]
  size_t auc_labels_;                        // 0: this model has no AUC
  BestModel best_;
  std::vector<shard::Figure> test_figures_;
  uint64_t tested_step_ = 0;
};

}  // namespace modelet::agent
