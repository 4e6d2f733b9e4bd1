// Chooses a recipe in up to three stages: the rules' recipe (recipe.h); trials of its alternatives on
// samples that are held out of the training data; and, if there is a time budget, the width and the number
// of passes that fit into it. Test data takes no part.
//
// Trials compare how good models are after a fixed number of steps, so the same data on the same
// instruction set gives the same decisions. Measured time only decides what is affordable: how large the
// model is under a time budget, whether a trial is left out because the trials before it took longer than expected, and
// whether several nodes train towers sooner than one network. The result is an ordinary experiment, which repeats
// exactly.
//
// Only decisions are made here; the trials are behind an interface. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "node_agent/train/recipe/data_facts.h"
#include "node_agent/train/recipe/recipe.h"

namespace modelet::agent {

// How long and how large the trials of a choice are; the same for all of them. All zero: there are no
// trials, for the reason `why_none`.
struct TrialPlan {
  uint32_t train_rows = 0, held_out_rows = 0, epochs = 0;
  uint32_t width = 0;  // of the hidden layer, if there is only one: narrower than the recipe's, to be quick
  // Not 0: a trial is the whole training, repeated so many times, each time without another fifth of the samples. The
  // numbers of rows are those of one repetition.
  uint32_t repetitions = 0;
  std::string why_none;
};

// A plan for `trials` trials of this recipe: which together cost `share` of its training or, if it is a small table, of
// whole trainings.
TrialPlan plan_trials(const Experiment& recipe, const DataFacts& facts, size_t trials, double share);
// The experiment that a trial trains, and its cost.
Experiment trial_experiment(const Experiment& experiment, const TrialPlan& plan);
double trial_cost(const Experiment& experiment, const DataFacts& facts, const TrialPlan& plan);

class Trials {
 public:
  struct Result {
    // On held-out samples, 0 to 1: the mean of P@1, P@3 and P@5, or P@1 if samples have one label. After whole
    // trainings: the probability that a sample's labels get in the (geometric) mean, once all scores are multiplied by
    // the number that makes it largest.
    double score = 0;
    double p_at_1 = 0;   // on the same samples
    double seconds = 0;  // duration of the trial
  };
  virtual ~Trials() = default;
  // The result depends only on the arguments, except for `seconds`.
  virtual Result run(const Experiment& experiment, const TrialPlan& plan) = 0;
  // Measures the pace with some steps of `experiment`, at its width and at a narrower one. The steps take about
  // `seconds`; making the models and scoring with them comes on top.
  virtual Pace pace(const Experiment& experiment, double seconds) = 0;
};

struct ChooseOptions {
  double trial_share = 0.25;      // the most that trials may take, as a share of the estimated training time
  std::optional<double> seconds;  // time budget for trials, training and evaluation together
  uint64_t test_rows = 0;         // rows that are scored at the end
  uint32_t nodes = 1;             // of the run
  // Whether the nodes train these towers sooner than this network. Without it, towers are chosen for their memory only.
  std::function<bool(const Experiment& network, const Experiment& towers, const DataFacts& facts)> towers_are_faster = {};
  bool in_memory = false;         // the samples are in memory, so there is no file to be read
  // Called several times a second while trials run; may throw, which ends the choice.
  std::function<void()> check = {};
};

struct Tried {
  std::string name;  // name of the alternative; the first is the rules' recipe
  Trials::Result result;
  bool taken = false;  // it replaced what was best before
};

// A recipe, and how it was chosen.
struct Choice : Recipe {
  std::vector<std::string> given;  // keys that the user gave
  DataFacts facts;
  TrialPlan plan;
  std::vector<Tried> trials;
  std::vector<std::string> notes;  // what else the user should know
  double trial_seconds = 0;        // duration of the trials
  double estimated_seconds = 0;    // of training and the final evaluation; 0: not measured
};

// Called before each trial with its number, from 1, the number of trials, and its name.
using OnTrial = std::function<void(size_t trial, size_t trials, const std::string& name)>;

// `read`: what was chosen to read the data. given.experiment has its values already.
Choice choose(const GivenKeys& given, const std::vector<Reason>& read, const DataFacts& facts,
              const Machine& machine, const ChooseOptions& options, Trials& trials,
              const OnTrial& on_trial = {});

}  // namespace modelet::agent
