#include "node_agent/train/recipe/trial.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "base/system/clock.h"
#include "comm/collectives/group.h"
#include "node_agent/machine/capacity.h"
#include "node_agent/step/exchange/rounds.h"
#include "node_agent/step/exchange/sharding.h"
#include "node_agent/step/training_step.h"
#include "node_agent/train/evaluation/classifiers.h"
#include "node_agent/train/evaluation/evaluator.h"
#include "shard/data/batch/batch_feed.h"
#include "shard/data/batch/split.h"
#include "shard/layers/learning_rate.h"
#include "shard/layers/network.h"

namespace modelet::agent {
namespace {

constexpr uint32_t kMostProbeSteps = 64, kFirstProbeSteps = 2;
constexpr size_t kProbeScored = 512;   // samples
constexpr size_t kProbeFitted = 2048;  // samples
constexpr uint32_t kNarrowProbe = 64;  // width of the narrower of two probes

// The scores of all labels for some samples, and which of them the samples have.
class Answers {
 public:
  explicit Answers(Loss loss) : loss_(loss) {}

  void add(const shard::Batch& batch, const shard::TopK& best) {
    for (size_t s = 0; s < batch.size(); ++s) {
      const std::span truth = std::span(batch.labels).subspan(batch.label_offsets[s], batch.label_offsets[s + 1] - batch.label_offsets[s]);
      const std::span<const uint32_t> labels = best.labels(s);
      ++samples_;
      right_ += std::ranges::find(truth, labels[0]) != truth.end() ? 1 : 0;
      for (size_t i = 0; i < labels.size(); ++i) {
        scores_.push_back(best.scores(s)[i]);
        has_.push_back(std::ranges::find(truth, labels[i]) != truth.end() ? 1 : 0);
      }
      labels_ = labels.size();
    }
  }

  double p_at_1() const { return samples_ > 0 ? static_cast<double>(right_) / static_cast<double>(samples_) : 0; }

  // With the best of many scales, so that a model is not blamed for being too sure: its order of labels counts, and
  // probabilities are calibrated anyway (shard/inference/calibration.h).
  double likelihood() const {
    constexpr int kFewestHalves = -10, kMostHalves = 6;  // scales are powers of the root of 2
    double best = 0;
    for (int halves = kFewestHalves; halves <= kMostHalves; ++halves)
      best = std::max(best, likelihood(std::exp2(0.5 * halves)));
    return best;
  }

 private:
  double likelihood(double scale) const {
    double sum = 0;
    for (size_t first = 0; first < scores_.size(); first += labels_)
      sum += loss_ == Loss::kSoftmax ? of_softmax(first, scale) : of_sigmoids(first, scale);
    return std::exp(sum / static_cast<double>(std::max<size_t>(samples_, 1)));
  }
  // Scores descend, so the first is the largest.
  double of_softmax(size_t first, double scale) const {
    double all = 0, right = 0;
    for (size_t i = first; i < first + labels_; ++i) {
      const double score = scale * (double{scores_[i]} - double{scores_[first]});
      all += std::exp(score);
      if (has_[i] != 0) right += score;
    }
    return right - std::log(all);
  }
  double of_sigmoids(size_t first, double scale) const {
    double sum = 0;
    for (size_t i = first; i < first + labels_; ++i) {
      const double score = scale * (has_[i] != 0 ? 1 : -1) * double{scores_[i]};
      sum -= std::max(-score, 0.0) + std::log1p(std::exp(-std::abs(score)));
    }
    return sum;
  }

  const Loss loss_;
  size_t labels_ = 1, samples_ = 0, right_ = 0;
  std::vector<float> scores_;  // [samples, labels], best first
  std::vector<uint8_t> has_;   // whether the sample has this label
};

Sharding alone(const Experiment& experiment, const DataShape& shape) {
  std::vector<ModeletSpec> partition = partition_model(experiment, shape);
  std::vector<uint32_t> owner(partition.size(), 0);
  return {std::move(partition), std::move(owner), 0, 1};
}

DataShape shape_of(const shard::Dataset& data, const shard::FeatureRows& features, size_t train_rows) {
  const auto rows = static_cast<double>(data.rows());
  DataShape shape{.features = data.features(),
                  .labels = data.labels(),
                  .train_rows = train_rows,
                  .features_per_row = static_cast<double>(data.nonzeros()) / rows,
                  .labels_per_row = static_cast<double>(data.label_entries()) / rows};
  if (!features.all()) shape.occurring_features = features.count();
  return shape;
}

// A model and the rows that it is trained on.
class TrialModel {
 public:
  TrialModel(const Experiment& experiment, const shard::Dataset& data, const shard::FeatureRows& features,
             std::vector<uint32_t> rows, ThreadPool& pool, const std::function<void()>& check)
      : experiment_(experiment),
        data_(data),
        shape_(shape_of(data, features, rows.size())),
        sharding_(alone(experiment, shape_)),
        network_(experiment, shape_, sharding_.held(), true, pool, features),
        group_(comm::make_solo_group()),
        evaluator_(network_, sharding_, *group_),
        check_(check),
        rows_(std::move(rows)) {
    evaluator_.stop_if([this] {
      if (check_) check_();
      return false;
    });
    network_.initialise();
    network_.build_pairs(data, rows_);
    network_.set_label_counts(counts(rows_));
    step_ = std::make_unique<TrainingStep>(network_, sharding_, *group_);
    feed_ = std::make_unique<shard::BatchFeed>(data, rows_, experiment.train, pool);
  }

  uint64_t all_steps() const { return experiment_.train.epochs * feed_->steps_per_epoch(); }

  // Runs the next step of the schedule, and returns the number of its samples.
  size_t step() {
    if (check_) check_();
    const uint64_t steps = all_steps();
    const shard::Batch& batch = feed_->at(steps_, steps);
    step_->run(batch, steps_,
               shard::learning_rate(experiment_.train, steps_, feed_->steps_per_epoch(), steps), false);
    ++steps_;
    return batch.size();
  }

  // Fits the classifiers, if there are any, to the weights of the last step.
  void fit() { fit(rows_); }
  void fit(std::span<const uint32_t> rows) {
    if (has_classifiers(experiment_.model))
      fit_classifiers(network_, evaluator_, data_, rows, {steps_, kClassifierRound});
  }

  void answer(std::span<const uint32_t> rows, Answers& answers) {
    evaluator_.predict(data_, rows, data_.labels(), {steps_, kEvaluationRound},
                       [&](const shard::Batch& batch, const shard::TopK& best) { answers.add(batch, best); });
  }

  std::vector<shard::Figure> score(std::span<const uint32_t> rows) {
    shard::Metrics metrics({1, 3, 5}, {}, 0);
    evaluator_.evaluate(data_, rows, metrics, {steps_, kEvaluationRound});
    return metrics.figures();
  }

 private:
  std::vector<uint32_t> counts(std::span<const uint32_t> rows) const {
    std::vector<uint32_t> counts(data_.labels(), 0);
    for (const uint32_t row : rows)
      for (const uint32_t label : data_.sample(row).labels) ++counts[label];
    return counts;
  }

  const Experiment& experiment_;
  const shard::Dataset& data_;
  const DataShape shape_;
  const Sharding sharding_;
  shard::Network network_;
  const std::unique_ptr<comm::Group> group_;
  Evaluator evaluator_;
  const std::function<void()>& check_;
  const std::vector<uint32_t> rows_;
  std::unique_ptr<TrainingStep> step_;
  uint64_t steps_ = 0;
  std::unique_ptr<shard::BatchFeed> feed_;  // last, so that it is destroyed before what it reads
};

double figure(const std::vector<shard::Figure>& figures, const std::string& name) {
  const auto found = std::ranges::find(figures, name, &shard::Figure::name);
  return found == figures.end() ? 0 : found->value;
}

// Holds out whole blocks of neighbouring rows. Neighbours in a file are often alike: parts of one work, or
// entries by one author. If rows were held out one by one, each would have near copies among the training
// rows, and a model that only memorises would look best.
shard::RowSplit hold_out_blocks(size_t rows, size_t held_out, size_t trained, uint64_t seed) {
  constexpr size_t kBlock = 64;
  std::vector<uint32_t> blocks = shard::all_rows((rows + kBlock - 1) / kBlock);
  shard::shuffle_rows(blocks, Rng(seed, {kStreamValidation}));
  shard::RowSplit split;
  for (const uint32_t block : blocks) {
    std::vector<uint32_t>& chosen = split.validation.size() < held_out ? split.validation : split.train;
    for (size_t row = block * kBlock; row < std::min(rows, (block + 1) * kBlock); ++row)
      chosen.push_back(static_cast<uint32_t>(row));
  }
  shard::shuffle_rows(split.train, Rng(seed, {kStreamValidation, 1}));
  split.train.resize(std::min(split.train.size(), trained));
  std::ranges::sort(split.train);
  return split;
}

// What a few steps and samples tell about an experiment.
struct Probe {
  Measured train, score;
};

// Runs steps for about `seconds`, after a few that only warm up, then scores some samples.
Probe probe(TrialModel& model, const Cost& cost, size_t rows, double seconds) {
  uint64_t left = std::min<uint64_t>(model.all_steps(), kMostProbeSteps);
  for (uint32_t i = 0; i < kFirstProbeSteps && left > 1; ++i, --left) model.step();
  const Stopwatch training;
  size_t samples = 0;
  while (left-- > 0 && (samples == 0 || training.seconds() < seconds)) samples += model.step();
  const double trained = training.seconds() / static_cast<double>(samples);

  const std::vector<uint32_t> some = shard::all_rows(std::min(rows, kProbeScored));
  const Stopwatch scoring;
  model.score(some);
  return {.train = {cost.train, trained},
          .score = {cost.score, scoring.seconds() / static_cast<double>(some.size())}};
}

}  // namespace

DataTrials::DataTrials(const shard::Dataset& train, const DataFacts& facts, uint32_t threads,
                       std::function<void()> check, uint32_t bins, Read read)
    : train_(train),
      features_(shard::FeatureRows::of(train)),
      bins_(bins),
      read_(std::move(read)),
      facts_(facts),
      pool_(threads > 0 ? threads : usable_cores()),
      check_(std::move(check)) {}

const DataTrials::Reading* DataTrials::other_reading(const Experiment& experiment) {
  if (!read_ || experiment.table.bins == bins_) return nullptr;
  std::unique_ptr<const Reading>& reading = readings_[experiment.table.bins];
  if (!reading) {
    shard::Dataset train = read_(experiment);
    shard::FeatureRows features = shard::FeatureRows::of(train);
    reading.reset(new Reading{std::move(train), std::move(features)});
  }
  return reading.get();
}

Trials::Result DataTrials::repeated(const Experiment& experiment, const TrialPlan& plan) {
  const Stopwatch watch;
  const Reading* const other = other_reading(experiment);
  const shard::Dataset& data = other ? other->train : train_;
  std::vector<uint32_t> rows = shard::all_rows(data.rows());
  shard::shuffle_rows(rows, Rng(experiment.train.seed, {kStreamValidation}));
  Answers answers(experiment.model.loss);
  for (uint32_t repetition = 0; repetition < plan.repetitions; ++repetition) {
    const auto first = rows.begin() + repetition * plan.held_out_rows, end = first + plan.held_out_rows;
    const std::vector<uint32_t> held_out(first, end);
    std::vector<uint32_t> trained(rows.begin(), first);
    trained.insert(trained.end(), end, rows.end());
    std::ranges::sort(trained);
    TrialModel model(experiment, data, other ? other->features : features_, std::move(trained), pool_, check_);
    for (uint64_t left = model.all_steps(); left > 0; --left) model.step();
    model.fit();
    model.answer(held_out, answers);
  }
  return {.score = answers.likelihood(), .p_at_1 = answers.p_at_1(), .seconds = watch.seconds()};
}

Trials::Result DataTrials::run(const Experiment& experiment, const TrialPlan& plan) {
  if (plan.repetitions > 0) return repeated(experiment, plan);
  const Stopwatch watch;
  auto [rows, held_out] =
      hold_out_blocks(train_.rows(), plan.held_out_rows, plan.train_rows, experiment.train.seed);
  TrialModel model(experiment, train_, features_, std::move(rows), pool_, check_);
  for (uint64_t left = model.all_steps(); left > 0; --left) model.step();
  model.fit();
  const std::vector<shard::Figure> figures = model.score(held_out);
  const double p_at_1 = figure(figures, "p_at_1");
  const double ranking = (p_at_1 + figure(figures, "p_at_3") + figure(figures, "p_at_5")) / 3;
  return {.score = facts_.one_label() ? p_at_1 : ranking, .p_at_1 = p_at_1, .seconds = watch.seconds()};
}

Pace DataTrials::pace(const Experiment& experiment, double seconds) {
  const Stopwatch all;
  const std::vector<uint32_t> rows = shard::all_rows(train_.rows());
  Probe wide;
  {
    TrialModel model(experiment, train_, features_, rows, pool_, check_);
    wide = probe(model, cost_of(experiment, facts_), rows.size(), seconds / 2);
  }
  Experiment narrower = experiment;
  if (narrower.model.hidden.size() == 1)
    narrower.model.hidden[0] = std::min(kNarrowProbe, narrower.model.hidden[0]);
  Pace pace;
  const Stopwatch making;
  TrialModel model(narrower, train_, features_, rows, pool_, check_);
  pace.start = making.seconds();
  const Probe narrow = probe(model, cost_of(narrower, facts_), rows.size(), seconds / 2);
  pace.train = seconds_between(narrow.train, wide.train);
  pace.score = seconds_between(narrow.score, wide.score);

  const std::span<const uint32_t> fitted = std::span(rows).first(std::min(rows.size(), kProbeFitted));
  const Stopwatch fitting;
  model.fit(fitted);
  if (has_classifiers(experiment.model))
    pace.fit = std::max(0.0, fitting.seconds() / static_cast<double>(fitted.size()) -
                                 pace.score.at(cost_of(narrower, facts_).propose));
  pace.measuring = all.seconds();
  return pace;
}

}  // namespace modelet::agent
