#include "node_agent/train/recipe/choose.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/experiment/towers.h"

namespace modelet::agent {
namespace {

// With fewer samples, settings cannot be told apart: with 200 the standard error of P@1 is up to 3.5
// points.
constexpr uint32_t kFewestHeldOut = 200, kMostHeldOut = 2000;
// A shorter trial would favour settings that learn fast at first. A longer one says little more.
constexpr uint32_t kTrialSteps = 300;
constexpr uint32_t kTrialEpochs = 3, kTrialWidth = 256;
// Whole trainings leave out one of so many parts, and are repeated until so many rows took part.
constexpr uint32_t kParts = 5, kRowsOfRepetitions = 10000;
// The most dropout in a trial: a short and narrow trial learns little by heart.
constexpr float kTrialDropout = 0.2f;
// The share of the allowed time for which trials are planned. Making the models also takes time, which is
// no part of a cost.
constexpr double kPlannedShare = 0.8;
// Shares of a time budget: for trials, and of the rest for training. What remains is for reading the test
// data, checkpoints, and other programs of the machine.
constexpr double kTrialsOfBudget = 0.15, kUsedOfBudget = 0.8;
// How long steps are timed: a share of the budget, and the most seconds, after which more say little.
constexpr double kTimingOfBudget = 0.1, kMostTiming = 2;

class Chooser {
 public:
  Chooser(const GivenKeys& given, const std::vector<Reason>& read, const DataFacts& facts,
          const Machine& machine, const ChooseOptions& options, Trials& trials, const OnTrial& on_trial)
      : given_(given),
        facts_(facts),
        machine_(machine),
        options_(options),
        trials_(trials),
        on_trial_(on_trial) {
    choice_.facts = facts;
    choice_.given.assign(given.keys.begin(), given.keys.end());
    choice_.chosen = read;
    choice_.experiment = given.experiment;
  }

  Choice run() {
    adopt(training_recipe(given_, facts_, machine_));
    consider_towers();
    Pace pace;
    double seconds = 0;  // of the budget that are left once the pace is known
    Experiment planned = choice_.experiment;
    if (options_.seconds) {
      pace = trials_.pace(tower_experiment(choice_.experiment),
                          std::min(kTimingOfBudget * *options_.seconds, kMostTiming));
      seconds = *options_.seconds - pace.measuring;
      planned = fitted((1 - kTrialsOfBudget) * seconds, pace).recipe.experiment;
    }
    try_alternatives(planned);
    if (options_.seconds) {
      const Fitted last = fitted(seconds - choice_.trial_seconds, pace);
      adopt(last.recipe);
      if (!last.fits)
        choice_.notes.push_back(
            "the time budget is too short even for the smallest model, which will exceed it");
    } else if (!choice_.trials.empty()) {
      pace = pace_of(choice_.trials.front().result);
    }
    choice_.estimated_seconds = seconds_of(choice_.experiment, facts_, pace, options_.test_rows);
    return std::move(choice_);
  }

 private:
  void adopt(const Recipe& recipe) {
    choice_.experiment = recipe.experiment;
    for (const Reason& reason : recipe.chosen) choice_.explain(reason);
  }

  // Only towers that learn as well as the network: with labels that exclude each other that is not known.
  void consider_towers() {
    const Experiment& network = choice_.experiment;
    if (!options_.towers_are_faster || given_.keys.contains("model.towers") || network.model.towers > 1 ||
        network.model.loss != Loss::kSigmoid)
      return;
    GivenKeys divided = given_;
    divided.towers = true;
    const Recipe towers = training_recipe(divided, facts_, machine_);
    if (towers.experiment.model.towers > 1 && options_.towers_are_faster(network, towers.experiment, facts_)) adopt(towers);
  }

  Fitted fitted(double seconds, const Pace& pace) const {
    return fit_to_time(given_, facts_, machine_, choice_.experiment, kUsedOfBudget * seconds, pace,
                       options_.test_rows);
  }

  Pace pace_of(const Trials::Result& trial) const {
    const double each = trial.seconds / trial_cost(choice_.experiment, facts_, choice_.plan);
    return {.train = {.per_cost = each}, .score = {.per_cost = each}};
  }

  // `planned`: what will be trained if no trial finds anything better.
  void try_alternatives(const Experiment& planned) {
    const std::vector<Alternative> offered = alternatives(given_, facts_, choice_.experiment);
    const size_t count = 1 + offered.size();
    choice_.plan = offered.empty() ? TrialPlan{.why_none = "nothing is left open"}
                                   : plan_trials(planned, facts_, count, share());
    if (options_.seconds && choice_.plan.repetitions > 0)
      choice_.plan = {.why_none = "with a time budget small tables are not tried out"};
    if (choice_.plan.train_rows == 0) return;
    Trials::Result best = run_trial("the rules' recipe", choice_.experiment, count);
    // The time of whole trainings was small from the start.
    const double most = choice_.plan.repetitions > 0
                            ? std::numeric_limits<double>::infinity()
                            : share() * seconds_of(planned, facts_, pace_of(best), options_.test_rows);
    for (const Alternative& alternative : offered) {
      if (choice_.trial_seconds + best.seconds > most) {
        choice_.notes.push_back("not tried, because trials have used their time: " + alternative.name);
        continue;
      }
      Recipe tried{choice_.experiment, alternative.chosen};
      alternative.apply(tried.experiment);
      const Trials::Result result = run_trial(alternative.name, tried.experiment, count);
      if (result.score <= best.score + margin(best.score)) continue;
      for (Reason& reason : tried.chosen)
        reason.reason += fmt::format("; {:.1f} instead of {:.1f} in a trial", 100 * result.score, 100 * best.score);
      adopt(tried);
      choice_.trials.back().taken = true;
      best = result;
    }
  }

  double share() const {
    return options_.seconds ? std::min(options_.trial_share, kTrialsOfBudget) : options_.trial_share;
  }

  // Half of the standard error of a score on the held-out samples. Half is enough, because both models are
  // judged by the same samples.
  double margin(double score) const {
    if (choice_.plan.repetitions == 0) return 0.5 * std::sqrt(score * (1 - score) / choice_.plan.held_out_rows);
    // A probability differs much less from sample to sample than being right or wrong.
    return 0.1 * std::sqrt(score * (1 - score) / (choice_.plan.repetitions * choice_.plan.held_out_rows));
  }

  Trials::Result run_trial(const std::string& name, const Experiment& experiment, size_t count) {
    if (on_trial_) on_trial_(choice_.trials.size() + 1, count, name);
    const Trials::Result result = trials_.run(trial_experiment(experiment, choice_.plan), choice_.plan);
    choice_.trials.push_back({name, result});
    choice_.trial_seconds += result.seconds;
    return result;
  }

  const GivenKeys& given_;
  const DataFacts& facts_;
  const Machine& machine_;
  const ChooseOptions& options_;
  Trials& trials_;
  const OnTrial& on_trial_;
  Choice choice_;
};

}  // namespace

TrialPlan plan_trials(const Experiment& recipe, const DataFacts& facts, size_t trials, double share) {
  TrialPlan plan{.epochs = std::min(kTrialEpochs, recipe.train.epochs),
                 .width = std::min(kTrialWidth, recipe.model.hidden.back())};
  if (share == 0) return {.why_none = "none are wanted"};
  if (is_small_table(recipe, facts)) {
    const auto rows = static_cast<uint32_t>(facts.rows);
    plan.repetitions = std::clamp(kRowsOfRepetitions / rows, 1u, kParts);
    plan.epochs = recipe.train.epochs;
    plan.width = recipe.model.hidden.back();
    plan.held_out_rows = rows / kParts;
    plan.train_rows = rows - plan.held_out_rows;
    return plan;
  }
  plan.held_out_rows = static_cast<uint32_t>(std::min<uint64_t>(facts.rows / 10, kMostHeldOut));
  const Cost cost = cost_of(trial_experiment(recipe, plan), facts);
  const double affordable =
      kPlannedShare * share * training_cost(recipe, facts) / static_cast<double>(trials) -
      plan.held_out_rows * cost.score;
  const double rows =
      std::min(affordable / (plan.epochs * cost.train), static_cast<double>(facts.rows - plan.held_out_rows));
  if (plan.held_out_rows < kFewestHeldOut ||
      rows * plan.epochs < static_cast<double>(kTrialSteps) * recipe.train.batch) {
    return {.why_none =
                fmt::format("{} samples are too few to tell settings apart in the time that trials may take",
                            facts.rows)};
  }
  plan.train_rows = kTrialSteps * recipe.train.batch / plan.epochs;
  return plan;
}

Experiment trial_experiment(const Experiment& experiment, const TrialPlan& plan) {
  if (plan.repetitions > 0) return experiment;
  Experiment trial = tower_experiment(experiment);  // what is better for one network is so for towers
  if (trial.model.hidden.size() == 1) trial.model.hidden = {plan.width};
  trial.train.epochs = plan.epochs;
  trial.train.hidden_dropout = std::min(trial.train.hidden_dropout, kTrialDropout);
  return trial;
}

double trial_cost(const Experiment& experiment, const DataFacts& facts, const TrialPlan& plan) {
  const Cost cost = cost_of(trial_experiment(experiment, plan), facts);
  return std::max(1u, plan.repetitions) *
         (static_cast<double>(plan.epochs) * plan.train_rows * cost.train + plan.held_out_rows * cost.score);
}

Choice choose(const GivenKeys& given, const std::vector<Reason>& read, const DataFacts& facts,
              const Machine& machine, const ChooseOptions& options, Trials& trials, const OnTrial& on_trial) {
  return Chooser(given, read, facts, machine, options, trials, on_trial).run();
}

}  // namespace modelet::agent
