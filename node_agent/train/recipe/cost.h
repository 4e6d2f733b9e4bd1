// What a recipe costs: work (of all its towers), memory (of one), and seconds once the pace of this machine is measured. Pure functions of facts and
// experiment; any thread.
#pragma once

#include <cstdint>

#include "base/experiment/experiment.h"
#include "node_agent/train/recipe/data_facts.h"

namespace modelet::agent {

// The cost of one training sample, of scoring all labels for one sample, and of scoring those that classifiers may
// take it for (labels that samples have): the number of multiplications with weights, to which time is proportional.
// Costs are comparable between experiments on the same data and machine.
struct Cost {
  double train = 0, score = 0, propose = 0;
};
Cost cost_of(const Experiment& experiment, const DataFacts& facts);
double training_cost(const Experiment& experiment, const DataFacts& facts);  // for all epochs
uint64_t model_bytes(const Experiment& experiment, const DataFacts& facts);  // with the optimiser's state

// Seconds for a sample: those for its features and a direct path, which take the same time at every width, and
// those for a unit of its cost.
struct SampleSeconds {
  double beside = 0, per_cost = 0;

  double at(double cost) const { return beside + per_cost * cost; }
};
struct Measured {
  double cost = 0, seconds = 0;  // of a sample
};
// What two measurements, whose costs differ, tell. Neither part is negative, even if noise makes the cheaper one
// the slower one.
SampleSeconds seconds_between(const Measured& cheap, const Measured& dear);

// Measured seconds; 0: not measured.
struct Pace {
  SampleSeconds train, score;
  double fit = 0;        // for each training row, to fit classifiers, beside scoring for it
  double start = 0;      // to make the model
  double measuring = 0;  // that it took to measure this
};
// The seconds for making a model, training it, and scoring `scored_rows` test samples at each evaluation. If
// samples are held out, these are scored at each evaluation, and the test samples once.
double seconds_of(const Experiment& experiment, const DataFacts& facts, const Pace& pace,
                  uint64_t scored_rows);

}  // namespace modelet::agent
