// DataTrials: runs real trials. It trains a model on some rows of the training data, and scores it on
// others that are held out. Nothing is written, except by `read`. One thread, parallel inside.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/parallel/thread_pool.h"
#include "node_agent/train/recipe/choose.h"
#include "shard/data/store/dataset.h"
#include "shard/data/store/feature_rows.h"

namespace modelet::agent {

class DataTrials final : public Trials {
 public:
  // The training data as an experiment says.
  using Read = std::function<shard::Dataset(const Experiment&)>;

  // `train` must have all labels, and outlive this object; it was read with so many `bins` (table.bins). `read`: for
  // experiments with others. `threads`: 0: all cores. `check` is as in ChooseOptions.
  DataTrials(const shard::Dataset& train, const DataFacts& facts, uint32_t threads,
             std::function<void()> check = {}, uint32_t bins = 0, Read read = {});

  Result run(const Experiment& experiment, const TrialPlan& plan) override;
  Pace pace(const Experiment& experiment, double seconds) override;

 private:
  struct Reading {
    shard::Dataset train;
    shard::FeatureRows features;
  };
  Result repeated(const Experiment& experiment, const TrialPlan& plan);
  const Reading* other_reading(const Experiment& experiment);

  const shard::Dataset& train_;
  const shard::FeatureRows features_;
  const uint32_t bins_;
  const Read read_;
  std::map<uint32_t, std::unique_ptr<const Reading>> readings_;  // by table.bins
  const DataFacts facts_;
  ThreadPool pool_;
  const std::function<void()> check_;
};

}  // namespace modelet::agent
