// DataTrials: runs real trials. It trains a model on some rows of the training data, and scores it on
// others that are held out. Nothing is written. One thread, parallel inside.
#pragma once

#include <functional>
#include <memory>

#include "base/parallel/thread_pool.h"
#include "node_agent/train/recipe/choose.h"
#include "shard/data/store/dataset.h"
#include "shard/data/store/feature_rows.h"

namespace modelet::agent {

class DataTrials final : public Trials {
 public:
  // `train` must have all labels, and outlive this object. `threads`: 0: all cores.
  // `check` is as in ChooseOptions.
  DataTrials(const shard::Dataset& train, const DataFacts& facts, uint32_t threads,
             std::function<void()> check = {});

  Result run(const Experiment& experiment, const TrialPlan& plan) override;
  Pace pace(const Experiment& experiment, double seconds) override;

 private:
  const shard::Dataset& train_;
  const shard::FeatureRows features_;
  const DataFacts facts_;
  ThreadPool pool_;
  const std::function<void()> check_;
};

}  // namespace modelet::agent
