// Recipes say how to train on data of which only the facts are known. Rules give a value and a reason to
// every key that matters. Where data with the same facts may still differ, alternatives name what a trial
// may find better (choose.h). Keys that the user has given are never changed. To extend a recipe, add a
// rule or an alternative in recipe.cc: a few lines of keys, values and words.
//
// Pure functions of facts, machine and given keys, without a clock, and without I/O except that
// reading_settings() looks at the file: the same input gives the same recipe. Any thread.
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

// A key, its value as --set takes it, and the reason, in words that need no other context.
struct Setting {
  std::string key, value, reason;
};

// What the user has given: an experiment, and which of its keys were given. The other keys are free.
struct GivenKeys {
  Experiment experiment;
  std::set<std::string> keys;
};

// What "key=value" settings give, without an experiment file. A key that makes sense only with a certain value
// of another, such as model.exclude_own with centroids, gives that one too. `origin` names the settings in
// errors.
GivenKeys given_settings(const std::string& origin, std::vector<std::string> settings);

// The machine's part in a recipe.
struct Machine {
  uint64_t memory_bytes = 0;   // memory that a run may use
  bool bf16_products = false;  // it has instructions that multiply bf16
};

// Settings that may be tried instead of the recipe's: all of them together, or none.
struct Alternative {
  std::string name;  // "loss softmax"
  std::vector<Setting> settings;
};

// The experiment with these settings. Throws UsageError if a value is not allowed.
Experiment with_settings(const Experiment& experiment, std::span<const Setting> settings);

// How to read the training text, as far as it is not given: its format, by its name and first line, and how
// words are weighted. Empty for numbers; for a prepared file only its scaling.
std::vector<Setting> reading_settings(const GivenKeys& given);

// How values are scaled. `facts` are those of the data as read without scaling.
std::vector<Setting> scaling_settings(const GivenKeys& given, const DataFacts& facts);

// All other settings. given.experiment must already have the settings for reading and scaling.
std::vector<Setting> recipe_settings(const GivenKeys& given, const DataFacts& facts, const Machine& machine);

// What is worth a trial against `recipe`, the most promising first. No alternative sets a given key.
std::vector<Alternative> alternatives(const GivenKeys& given, const DataFacts& facts,
                                      const Experiment& recipe);

// ---- What a recipe costs

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

// The largest model that fits into a time: changes of `recipe`'s width, epochs and classifiers, as far as these
// are free, so that seconds_of() is at most `seconds`. Tries a ladder from larger to smaller models. If none
// fits, it is the smallest, and `fits` is false.
struct Fitted {
  std::vector<Setting> settings;  // empty: the recipe unchanged
  bool fits = true;
};
Fitted fit_to_time(const GivenKeys& given, const DataFacts& facts, const Machine& machine,
                   const Experiment& recipe, double seconds, const Pace& pace, uint64_t scored_rows);

}  // namespace modelet::agent
