// Chooses a recipe: the rules' recipe (recipe.h), trials of its alternatives on samples that are held out of the
// training data, and, if there is a time to keep, the width and the passes that fit into it. Test data takes
// no part.
//
// What repeats, and what does not: trials compare how good models are after a fixed number of steps, so the
// same data on the same instruction set gives the same decisions. Measured time decides only what is
// affordable: how large the model is under a time budget, and whether a trial is left out because those
// before it took longer than expected. The result is an ordinary experiment, which repeats exactly.
//
// Pure decisions; the trials stand behind an interface. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "node_agent/train/recipe/data_facts.h"
#include "node_agent/train/recipe/recipe.h"

namespace modelet::agent {

// How long and how large trials are: the same for all of a choice. All zero: no trials, `why_none`.
struct TrialPlan {
  uint32_t train_rows = 0, held_out_rows = 0, epochs = 0;
  uint32_t width = 0;  // of the hidden layer, if there is one: narrower than the recipe's, to be quick
  std::string why_none;
};

// `trials` of this recipe that together cost `share` of its training.
TrialPlan plan_trials(const Experiment& recipe, const DataFacts& facts, size_t trials, double share);
// The experiment that a trial trains, and its cost.
Experiment trial_experiment(const Experiment& experiment, const TrialPlan& plan);
double trial_cost(const Experiment& experiment, const DataFacts& facts, const TrialPlan& plan);

class Trials {
 public:
  struct Result {
    double score =
        0;  // on held-out samples, 0 to 1: mean of P@1, P@3 and P@5, or P@1 if samples have one label
    double p_at_1 = 0;   // the same samples
    double seconds = 0;  // that the trial took
  };
  virtual ~Trials() = default;
  // A function of its arguments but for `seconds`.
  virtual Result run(const Experiment& experiment, const TrialPlan& plan) = 0;
  // Measured with some steps of the experiment as it is.
  virtual Pace pace(const Experiment& experiment) = 0;
};

struct ChooseOptions {
  double trial_share = 0.25;      // of the training's own estimated time; the most that trials may take
  std::optional<double> seconds;  // for trials, training and evaluation together
  uint64_t test_rows = 0;         // that are scored at the end
  bool in_memory = false;         // the samples are in memory: there is no file whose reading is to be chosen
};

struct Tried {
  std::string name;  // of the alternative; the first is the rules' recipe
  Trials::Result result;
  bool taken = false;  // in place of what was best before
};

struct Choice {
  Experiment experiment;
  std::vector<Setting> settings;   // that were chosen
  std::vector<std::string> given;  // keys that were not touched
  DataFacts facts;
  TrialPlan plan;
  std::vector<Tried> trials;
  std::vector<std::string> notes;  // what else should be known
  double trial_seconds = 0;        // that choosing took
  double estimated_seconds = 0;    // of training and the final evaluation; 0: not measured
};

// Called before each trial: its number from 1, of how many, and its name.
using TellTrial = std::function<void(size_t trial, size_t trials, const std::string& name)>;

// `read`: the settings that reading the data led to; their keys count as chosen, and given.experiment has them.
Choice choose(const GivenKeys& given, const std::vector<Setting>& read, const DataFacts& facts,
              const Machine& machine, const ChooseOptions& options, Trials& trials,
              const TellTrial& tell = {});

}  // namespace modelet::agent
