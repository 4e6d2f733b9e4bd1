// Tunes the retrieval. There are low-rank projections of some rank, and hash tables with a family and a
// number of tables and buckets; both have a number of candidates. Which of them finds most of the neurons
// with the largest logits, in the time that retrieval may take, depends on the data, the width and the
// machine. So it is measured. Common neurons (sampling.common) are found without retrieval, so only the
// others count. A model is trained for some steps. Then each setting of a small grid builds projections or
// tables for one output modelet, and retrieves for a batch as a training step would.
//
// One thread, in this process. Trained weights are a function of the experiment, but times are not, and so
// neither is the choice. It is therefore written into the experiment and used as given from then on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/store/dataset.h"

namespace modelet::agent {

struct TuneOptions {
  double slowdown = 0.4;  // time that retrieval may add, as a share of a step with uniform draws
  uint32_t steps = 1000;  // training before measuring: retrieval needs weights that have a structure
};

struct TuneTrial {
  Experiment::Sampling sampling;  // the experiment's, with this trial's retrieval
  // The share of each sample's best neurons in a modelet that is found. Common neurons do not count.
  double recall = 0;
  double seconds_per_step = 0;  // of retrieval in all modelets on one thread; the best of several rounds
  double slowdown = 0;          // the same as a share of a step with uniform draws
};

struct TuneResult {
  std::vector<TuneTrial> trials;
  size_t chosen = 0;  // the best recall of those that are fast enough; if none is, the fastest
};

// `report(done, of)` is called after each trial.
TuneResult tune_retrieval(const Experiment& experiment, const shard::Dataset& train, const DataShape& shape,
                          const TuneOptions& options, const std::function<void(size_t, size_t)>& report);

}  // namespace modelet::agent
