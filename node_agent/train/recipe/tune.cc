#include "node_agent/train/recipe/tune.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <set>

#include "base/array/padding.h"
#include "base/error.h"
#include "base/system/clock.h"
#include "node_agent/step/exchange/sharding.h"
#include "node_agent/step/training_step.h"
#include "shard/data/batch/batch.h"
#include "shard/data/batch/split.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/ids.h"
#include "shard/layers/forward.h"
#include "shard/layers/network.h"
#include "shard/layers/output/active_set.h"

namespace modelet::agent {
namespace {

// Neurons of a modelet that retrieval should find for a sample: its share of P@5, and more.
constexpr size_t kBest = 5;
// How often a query is timed. The fastest time counts, because the others contain the machine's noise.
constexpr int kRounds = 3;
constexpr uint32_t kMinBits = 4;

// The settings to try. The number of buckets follows from the number of neurons in the modelet.
std::vector<Experiment::Sampling> grid(const Experiment::Sampling& base, size_t neurons, size_t width) {
  std::vector<Experiment::Sampling> settings;
  for (const uint32_t rank : {16u, 32u, 64u})
    for (const uint32_t candidates : {8u, 32u}) {
      if (base.mode == SamplingMode::kLshPerSample || rank > std::max(width, kVectorFloats)) continue;
      Experiment::Sampling s = base;
      s.mode = SamplingMode::kLsh;
      s.retrieval = RetrievalKind::kLowRank;
      s.rank = rank;
      s.candidates = candidates;
      settings.push_back(s);
    }
  const auto most_bits = std::max<uint32_t>(kMinBits, static_cast<uint32_t>(std::bit_width(neurons)));
  for (const HashFamilyKind family : all_values<HashFamilyKind>())
    for (const uint32_t tables : {4u, 8u, 16u})
      for (const uint32_t fewer : {4u, 2u, 1u})  // a bucket holds about 2^fewer neurons
        for (const uint32_t candidates : {16u, 64u}) {
          Experiment::Sampling s = base;
          s.mode = SamplingMode::kLsh;
          s.retrieval = RetrievalKind::kTables;
          s.family = family;
          s.tables = tables;
          s.bits = std::max(kMinBits, most_bits - std::min(most_bits, fewer));
          s.bucket = 8u << fewer;
          s.candidates = candidates;
          settings.push_back(s);
        }
  return settings;
}

// A model after a few steps, and the activations of a batch that it was not trained on.
class TrainedModel {
 public:
  TrainedModel(const Experiment& experiment, const shard::Dataset& train, const DataShape& shape,
               uint32_t steps)
      : pool_(1),
        sharding_(partition_model(experiment, shape),
                  std::vector<uint32_t>(partition_model(experiment, shape).size(), 0), 0, 1),
        network_(experiment, shape, sharding_.held(), true, pool_, shard::FeatureRows::of(train)),
        group_(comm::make_solo_group()) {
    network_.initialise();
    network_.build_pairs(train, shard::all_rows(train.rows()));
    TrainingStep step(network_, sharding_, *group_);
    shard::BatchOrder order(shard::all_rows(train.rows()), experiment.train.batch, experiment.train.seed);
    shard::Batch batch;
    for (uint32_t i = 0; i < steps; ++i) {
      const Stopwatch watch;
      batch.assign(train, order.rows(i), true);
      step.run(batch, i, experiment.train.learning_rate, false);
      step_seconds_ = std::min(step_seconds_, watch.seconds());
    }
    batch.assign(train, order.rows(steps), false);
    shard::forward(network_, batch, pass_);
  }

  ConstMatrix hidden() const { return pass_.output_input(); }
  shard::Modelet& output() { return *network_.output().modelets().front(); }
  ThreadPool& pool() { return pool_; }
  double step_seconds() const { return step_seconds_; }  // duration of the fastest step on one thread

 private:
  ThreadPool pool_;
  Sharding sharding_;
  shard::Network network_;
  std::unique_ptr<comm::Group> group_;
  shard::ForwardPass pass_;
  double step_seconds_ = std::numeric_limits<double>::infinity();
};

// The kBest rows of each sample by their exact logits, without the common rows: what retrieval has to find.
std::vector<std::set<uint32_t>> true_best(const shard::Modelet& modelet, ConstMatrix hidden) {
  const shard::Parameters& p = modelet.parameters();
  const std::set<uint32_t> common(modelet.retrieval()->common.begin(), modelet.retrieval()->common.end());
  std::vector<std::pair<float, uint32_t>> ranking;
  std::vector<std::set<uint32_t>> best(hidden.rows);
  for (size_t s = 0; s < hidden.rows; ++s) {
    ranking.clear();
    for (uint32_t row = 0; row < p.rows(); ++row)
      if (!common.contains(row)) ranking.emplace_back(-p.logit(row, hidden.row(s)), row);
    const size_t count = std::min(kBest, ranking.size());
    std::partial_sort(ranking.begin(), ranking.begin() + static_cast<std::ptrdiff_t>(count), ranking.end(),
                      [](const auto& a, const auto& b) {
                        return shard::kernels::comes_before(a.first, a.second, b.first, b.second);
                      });
    for (size_t i = 0; i < count; ++i) best[s].insert(ranking[i].second);
  }
  return best;
}

// A modelet with the trained one's weights, and with projections or tables by the experiment's settings.
std::unique_ptr<shard::Modelet> with_retrieval(shard::Modelet& trained, const Experiment& experiment,
                                               ConstMatrix hidden, ThreadPool& pool) {
  auto modelet = std::make_unique<shard::Modelet>(trained.spec(), shard::modelet_options(experiment, false));
  const auto from = trained.parameters().arrays();
  for (const shard::Parameters::Array& to : modelet->parameters().arrays()) {
    const auto same =
        std::ranges::find_if(from, [&](const auto& array) { return !std::strcmp(array.name, to.name); });
    MODELET_CHECK(same != from.end());
    to.unpack(same->packed());
  }
  std::vector<float>& mean = modelet->retrieval()->query_mean;
  for (size_t s = 0; s < hidden.rows; ++s)
    shard::kernels::axpy(1 / static_cast<float>(hidden.rows), hidden.row(s), mean.data(), mean.size());
  shard::Retrieval& retrieval = *modelet->retrieval();
  if (retrieval.tables) retrieval.tables->build(modelet->parameters().weights());
  if (retrieval.low_rank)
    retrieval.low_rank->build(modelet->parameters(),
                              shard::main_directions(hidden, retrieval.low_rank->rank()), hidden, pool);
  modelet->choose_common();
  return modelet;
}

TuneTrial measure(shard::Modelet& trained, Experiment experiment, const Experiment::Sampling& sampling,
                  uint64_t labels, ConstMatrix hidden, const std::vector<std::set<uint32_t>>& best,
                  ThreadPool& pool) {
  experiment.sampling = sampling;
  const auto modelet = with_retrieval(trained, experiment, hidden, pool);
  shard::ActiveSetSampler sampler(*modelet, shard::output_options(experiment, labels));
  shard::Queries queries;
  std::vector<uint32_t> found;
  // Work that all modelets share is done once. Then each modelet retrieves, one after the other.
  double seconds = std::numeric_limits<double>::infinity();
  const shard::QueryTurn turn = sampler.turn(0);
  for (int round = 0; round < kRounds; ++round) {
    const Stopwatch shared_watch;
    queries.take(*modelet->retrieval(), hidden, pool, turn);
    const double shared = shared_watch.seconds();
    const Stopwatch watch;
    sampler.retrieve(*modelet, hidden, queries, sampler.top(), pool, found, turn);
    seconds = std::min(seconds, shared + watch.seconds() * experiment.modelets.output_modelets);
  }
  // Candidates are ranked by exact logits, so every best neuron among them is found. Common ones are among
  // the ranked ones, too.
  const size_t top = kBest + modelet->retrieval()->common.size();
  queries.take(*modelet->retrieval(), hidden, pool);
  sampler.retrieve(*modelet, hidden, queries, top, pool, found);
  size_t hits = 0, all = 0;
  for (size_t s = 0; s < hidden.rows; ++s) {
    all += best[s].size();
    for (size_t i = 0; i < top; ++i) hits += best[s].count(found[s * top + i]);
  }
  return {.sampling = sampling,
          .recall = all == 0 ? 1 : static_cast<double>(hits) / static_cast<double>(all),
          .seconds_per_step = seconds};
}

}  // namespace

TuneResult tune_retrieval(const Experiment& experiment, const shard::Dataset& train, const DataShape& shape,
                          const TuneOptions& options, const std::function<void(size_t, size_t)>& report) {
  Experiment training = experiment;
  training.sampling.mode = SamplingMode::kUniform;
  TrainedModel model(training, train, shape, options.steps);
  shard::Modelet& trained = model.output();
  const auto settings = grid(experiment.sampling, trained.spec().neurons(), model.hidden().cols);
  training.sampling = settings.front();
  const auto best =
      true_best(*with_retrieval(trained, training, model.hidden(), model.pool()), model.hidden());

  TuneResult result;
  for (const Experiment::Sampling& sampling : settings) {
    TuneTrial& trial = result.trials.emplace_back(
        measure(trained, training, sampling, shape.labels, model.hidden(), best, model.pool()));
    trial.slowdown = trial.seconds_per_step / model.step_seconds();
    report(result.trials.size(), settings.size());
  }
  const auto better = [&](const TuneTrial& a, const TuneTrial& b) {
    const bool fast = a.slowdown <= options.slowdown, other = b.slowdown <= options.slowdown;
    if (fast != other) return fast;
    if (fast && a.recall != b.recall) return a.recall > b.recall;
    return a.slowdown < b.slowdown;
  };
  result.chosen =
      static_cast<size_t>(std::ranges::min_element(result.trials, better) - result.trials.begin());
  return result;
}

}  // namespace modelet::agent
