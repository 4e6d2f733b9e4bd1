// Tuner of the retrieval: low-rank projections of which rank, or which family, how many tables and buckets,
// and how many candidates find most of the neurons with the largest logits in the time that retrieval may
// take, follows from the data, the width and the machine; so it is measured. Common neurons (sampling.common)
// are found without either, so only the others count. A model is trained for a few steps, then each setting
// of a small grid builds projections or tables of one output modelet and retrieves for a batch as a training
// step would.
//
// One thread, in this process. Trained weights are a function of the experiment, but times are not, and so
// neither is the choice: it is written down and used as given from then on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/store/dataset.h"

namespace modelet::agent {

struct TuneOptions {
  double slowdown = 0.4;  // time that retrieval may add to a step, as a share of a step with uniform draws
  uint32_t steps = 1000;  // training before measuring: retrieval matters once weights have a structure
};

struct TuneTrial {
  Experiment::Sampling sampling;  // the experiment's, with this trial's retrieval
  // The share of a modelet's best neurons, without common ones, that is found for each sample.
  double recall = 0;
  double seconds_per_step = 0;  // of retrieval in all modelets, one thread; the best of several rounds
  double slowdown = 0;          // the same as a share of a step with uniform draws
};

struct TuneResult {
  std::vector<TuneTrial> trials;
  size_t chosen = 0;  // the best recall among those that are fast enough; if none is, the fastest
};

// `report(done, of)` is called as trials are done.
TuneResult tune_retrieval(const Experiment& experiment, const shard::Dataset& train, const DataShape& shape,
                          const TuneOptions& options, const std::function<void(size_t, size_t)>& report);

}  // namespace modelet::agent
