// What the output layer needs to know of an experiment and its data. A plain value.
#pragma once

#include <cstdint>

#include "base/experiment/experiment.h"
#include "shard/data/pairs/own_items.h"

namespace modelet::shard {

struct OutputOptions {
  Loss loss = Loss::kSoftmax;
  Precision precision = Precision::kFp32;
  Experiment::Sampling sampling;
  bool direct_path = false;
  float own_weight = 0;     // shard/data/pairs/own_items.h
  float input_dropout = 0;  // rate at which a training batch's features were left out
  uint64_t neurons = 0;     // of the whole layer
  uint32_t modelets = 1;    // that it is divided into
  uint64_t seed = 0;
};

inline OutputOptions output_options(const Experiment& experiment, uint64_t neurons) {
  return {.loss = experiment.model.loss,
          .precision = experiment.model.precision,
          .sampling = experiment.sampling,
          .direct_path = experiment.model.centroids,
          .own_weight = shard::own_weight(experiment.model),
          .input_dropout = experiment.train.input_dropout,
          .neurons = neurons,
          .modelets = experiment.modelets.output_modelets,
          .seed = experiment.train.seed};
}

}  // namespace modelet::shard
