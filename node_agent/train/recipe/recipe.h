// Recipes say how to train on data of which only the facts are known. Rules give a value and a reason to
// every key that matters: some follow from the sizes of the data, the others are those of its regime (regime.h).
// Where data with the same facts may still differ, alternatives name what a trial may find better (choose.h). Keys
// that the user has given are never changed. To extend a recipe, add a regime, a rule or an alternative.
//
// Pure functions of facts, machine and given keys, without a clock, and without I/O except that given_in_file() and
// reading_recipe() look at their file: the same input gives the same recipe. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "node_agent/train/recipe/cost.h"
#include "node_agent/train/recipe/data_facts.h"

namespace modelet::agent {

// A key that was chosen, and the reason for its value, in words that need no other context.
struct Reason {
  std::string key, reason;
};

// An experiment, and the keys in it that were chosen, in the order of the choice.
struct Recipe {
  Experiment experiment;
  std::vector<Reason> chosen;

  void explain(Reason reason);  // instead of the reason that the key may have had before
};

// What the user has given: an experiment, and which of its keys were given. The other keys are free.
struct GivenKeys {
  Experiment experiment;
  std::set<std::string> keys;
  bool towers = false;  // model.towers = auto: towers are wanted, and their number is free
};

// What "key=value" settings give, without an experiment file or on top of one. A key that makes sense only with a
// certain value of another, such as model.exclude_own with centroids, gives that one too. `origin` names the settings
// in errors.
GivenKeys given_settings(const std::string& origin, std::vector<std::string> settings);
GivenKeys given_in_file(const std::filesystem::path& file, std::vector<std::string> settings);

// The machine's part in a recipe.
struct Machine {
  uint64_t memory_bytes = 0;   // memory that a run may use
  uint32_t nodes = 1;          // of the run
  bool bf16_products = false;  // it has instructions that multiply bf16
};

// The functions below choose the keys that are free in given.experiment, and leave its others as they are.

// How to read the training text: its format, by its name and first line, and how words are weighted. Nothing for
// numbers; for a prepared file only its scaling.
Recipe reading_recipe(const GivenKeys& given);

// How values are scaled. `facts` are those of the data as read without scaling.
Recipe scaling_recipe(const GivenKeys& given, const DataFacts& facts);

// Whether this is a table that is trained in seconds, so that whole trainings may be its trials. Such tables differ in
// how much can be learned of them, which their facts do not tell (docs/studies/tables.md).
bool is_small_table(const Experiment& recipe, const DataFacts& facts);

// All other settings. given.experiment must already have the settings for reading and scaling.
Recipe training_recipe(const GivenKeys& given, const DataFacts& facts, const Machine& machine);

// Other values of some keys, which may be tried instead of the recipe's.
struct Alternative {
  std::string name;  // "loss softmax"
  std::vector<Reason> chosen;
  void (*apply)(Experiment&);
};
// What is worth a trial against `recipe`, the most promising first. No alternative changes a given key.
std::vector<Alternative> alternatives(const GivenKeys& given, const DataFacts& facts,
                                      const Experiment& recipe);

// The largest model that fits into a time: `recipe` with another width, number of epochs and classifiers, as far as
// these are free, so that seconds_of() is at most `seconds`. If none fits, it is the smallest, and `fits` is false.
struct Fitted {
  Recipe recipe;
  bool fits = true;
};
Fitted fit_to_time(const GivenKeys& given, const DataFacts& facts, const Machine& machine,
                   const Experiment& recipe, double seconds, const Pace& pace, uint64_t scored_rows);

}  // namespace modelet::agent
