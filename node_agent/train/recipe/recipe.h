// Recipes: how to train on data of which only the facts are known. Rules give every key that matters a value and
// a reason; where data of one shape differs, alternatives say what a trial may find better (choose.h). What
// the user has given is never changed. To add to a recipe, add a rule or an alternative in recipe.cc: a few
// lines of keys, values and words.
//
// Pure functions of facts, machine and given keys, without clock or I/O: the same input gives the same
// recipe. For any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "node_agent/train/recipe/data_facts.h"

namespace modelet::agent {

// A key, its value as --set takes it, and why, in words that need no other context.
struct Setting {
  std::string key, value, reason;
};

// What the user has said: an experiment, and which of its keys were given; the others are free.
struct GivenKeys {
  Experiment experiment;
  std::set<std::string> keys;
};

// The machine's part in a recipe.
struct Machine {
  uint64_t memory_bytes = 0;   // that a run may use
  bool bf16_products = false;  // it multiplies bf16 by instructions of its own
};

// Settings that may be tried in place of the recipe's: all of them, or none.
struct Alternative {
  std::string name;  // "loss softmax"
  std::vector<Setting> settings;
};

// The experiment with these settings. UsageError if a value is not allowed.
Experiment with_settings(const Experiment& experiment, std::span<const Setting> settings);

// How the training text `train` should be read, of what is not given: its format by its name and first line, and how
// words are weighted. Empty for numbers and prepared files.
std::vector<Setting> reading_settings(const GivenKeys& given);

// How values are scaled, by facts of data that was read without scaling.
std::vector<Setting> scaling_settings(const GivenKeys& given, const DataFacts& facts);

// Everything else. given.experiment has the settings for reading and scaling already.
std::vector<Setting> recipe_settings(const GivenKeys& given, const DataFacts& facts, const Machine& machine);

// What is worth a trial against `recipe`, the most promising first. None of them sets a given key.
std::vector<Alternative> alternatives(const GivenKeys& given, const DataFacts& facts,
                                      const Experiment& recipe);

// ---- What a recipe costs

// Of one training sample, and of scoring all labels of one sample: multiplications of weights, which is what
// time is proportional to. Comparable between experiments on the same data and machine.
struct Cost {
  double train = 0, score = 0;
};
Cost cost_of(const Experiment& experiment, const DataFacts& facts);
double training_cost(const Experiment& experiment, const DataFacts& facts);  // of all epochs
uint64_t model_bytes(const Experiment& experiment, const DataFacts& facts);  // with the optimiser's state

// Measured seconds for a unit of each cost; 0: not measured.
struct Pace {
  double train = 0, score = 0;
};
// Of training, and of scoring so many samples.
double seconds_of(const Experiment& experiment, const DataFacts& facts, const Pace& pace,
                  uint64_t scored_rows);

// The model that fits into a time: changes of `recipe`'s width and epochs, if these are free, so that
// seconds_of() is at most `seconds`. Takes the best of a ladder from larger to smaller ones; the smallest if none
// fits, and `fits` is false then.
struct Fitted {
  std::vector<Setting> settings;  // empty: the recipe as it is
  bool fits = true;
};
Fitted fit_to_time(const GivenKeys& given, const DataFacts& facts, const Machine& machine,
                   const Experiment& recipe, double seconds, const Pace& pace, uint64_t scored_rows);

}  // namespace modelet::agent
