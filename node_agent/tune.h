// Tuner of the hash tables: which family, how many tables and buckets, and how many candidates find enough of
// the neurons with the largest logits, at the least time per query, follows from the data and the width; so
// it is measured. Common neurons (sampling.common) are found without tables, so only the others count. A
// model is trained for a few steps, then each setting of a small grid builds the tables of one output modelet
// and retrieves for a batch as a training step would.
//
// One thread, in this process. Trained weights are a function of the experiment; times are not, so neither is
// the choice: it is written down and used as given from then on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/experiment.h"
#include "shard/data/dataset.h"

namespace modelet::agent {

struct TuneOptions {
  double recall = 0.8;    // enough: this share of what the setting that finds most finds
  uint32_t steps = 1000;  // training before measuring: tables matter once weights have a structure
};

struct TuneTrial {
  Experiment::Sampling sampling;  // the experiment's, with this trial's tables
  // Share that is found of a modelet's best neurons for each sample, common ones left out.
  double recall = 0;
  double seconds_per_query = 0;  // of one sample in one modelet, one thread; the best of several rounds
};

struct TuneResult {
  std::vector<TuneTrial> trials;
  size_t chosen = 0;  // the cheapest with enough recall
};

// `report(done, of)` is called as trials are done.
TuneResult tune_tables(const Experiment& experiment, const shard::Dataset& train, const DataShape& shape,
                       const TuneOptions& options, const std::function<void(size_t, size_t)>& report);

}  // namespace modelet::agent
