// Makes the whole choice for a training set: reads the set as its format asks, measures its facts and this
// machine, and chooses (choose.h). `modelet train TRAIN TEST` and `modelet.fit(X, Y)` call it before they
// train. One thread, parallel inside.
#pragma once

#include <cstdint>
#include <functional>

#include "node_agent/train/recipe/choose.h"
#include "shard/data/store/dataset.h"

namespace modelet::agent {

struct LoadedData {
  shard::Dataset train;  // with all labels
  uint64_t test_rows = 0;
};
// Reads data.train and data.test as the experiment says. May be called several times, with another data.normalize or
// table.bins.
using LoadData = std::function<LoadedData(const Experiment&)>;

// `seconds` of a time budget count from this call. Throws UsageError if given keys contradict each other.
Choice choose_for_data(const GivenKeys& given, const LoadData& load, const ChooseOptions& options,
                       const OnTrial& on_trial = {});

}  // namespace modelet::agent
