#include "shard/inference/tower.h"

#include <filesystem>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/system/log.h"
#include "shard/data/batch/split.h"
#include "shard/layers/scoring/classifiers.h"
#include "shard/modelet/state.h"

namespace modelet::shard {
namespace {

// The share of queries in which the tuned index must agree with dense scoring. It is higher than the 99 % of
// P@1 that are promised, because later queries differ from the known ones, and because the labels that are
// missed are rare ones, which tend to be right where they are the best.
constexpr double kRecallWanted = 0.9995;

}  // namespace

Tower::Tower(Checkpoint checkpoint, LabelSpread spread, ThreadPool& pool)
    : checkpoint_(std::move(checkpoint)),
      pool_(pool),
      network_(checkpoint_.index().experiment, checkpoint_.index().shape,
               partition_model(checkpoint_.index().experiment, checkpoint_.index().shape), false, pool,
               stored_feature_rows(checkpoint_), std::move(spread)),
      ranker_(network_.scoring(), pool) {
  for (const auto& modelet : network_.modelets()) restore_modelet(*modelet, checkpoint_);
  network_.set_scoring();
  network_.scoring().remove(checkpoint_.index().removed_labels);
  const Scoring& scoring = network_.scoring();
  constants_.resize(network_.spread().neurons());
  for (size_t m = 0; m < scoring.modelets().size(); ++m) {
    const ModeletSpec& spec = scoring.modelets()[m]->spec();
    scoring.constants({m, all_rows(spec.neurons())}, &constants_[spec.begin]);
  }
  if (scoring.terms().size() > 1) by_feature_.emplace(scoring);
  if (scoring.settings().classifiers > 0 && !has_fitted_classifiers(scoring))
    log_warning(
        "{}: was written before the model's linear classifiers were fitted, and is less accurate without them. They "
        "are fitted before evaluations (train.evaluate_every) and at the end: resume the run",
        checkpoint_.folder().string());
}

void Tower::rank(const Batch& batch, size_t k, TopK& best, const LabelSet* among) {
  forward(network_, batch, pass_);
  ranker_.rank_dense(pass_.output_input_transposed(), batch.size(), k, best, &batch, Ranking::kPrediction,
                     among);
}

void Tower::score(const Batch& batch, float* scores) {
  forward(network_, batch, pass_);
  ranker_.score_dense(pass_.output_input_transposed(), batch.size(), scores, &batch);
}

void Tower::add_scores(const Batch& batch, Matrix scores, const LabelSet* among) {
  forward(network_, batch, pass_);
  ranker_.add_scores(pass_.output_input_transposed(), batch.size(), scores, &batch, among);
}

ConstMatrix Tower::embed(const Batch& batch) {
  forward(network_, batch, pass_);
  return pass_.output_input();
}

void Tower::prepare_sparse(const Batch& batch) {
  const ConstMatrix queries = embed(batch);
  const uint64_t digests[] = {fingerprint_of(checkpoint_.index()),
                              xxh3_of(std::as_bytes(std::span(queries.data, queries.rows * queries.cols)))};
  const uint64_t key = xxh3_of(std::as_bytes(std::span(digests)));
  const std::filesystem::path file = checkpoint_.folder() / kSparsePlanFile;
  std::optional<SparsePlan> plan = read_sparse_plan(file, key, network_.spread().neurons(), queries.cols);
  if (!plan) {
    plan = plan_sparse(batch);
    write_sparse_plan(file, key, *plan);
  }
  tuned_ = plan->tuned;
  sparse_ = std::make_unique<SparseIndex>(network_.scoring(), plan->order, tuned_->settings,
                                          network_.experiment().train.seed, pool_);
}

// Of queries that have just been embedded.
SparsePlan Tower::plan_sparse(const Batch& batch) {
  TopK best;
  ranker_.rank_dense(pass_.output_input_transposed(), batch.size(), 1, best, &batch);
  QuerySample queries{pass_.output_input(), {}, {}};
  for (size_t q = 0; q < batch.size(); ++q) {
    if (best.labels(q)[0] == TopK::kNoLabel)
      throw FormatError(checkpoint_.folder().string() +
                        ": the model's scores are not numbers; it cannot be used");
    queries.best.push_back(network_.spread().neuron(best.labels(q)[0]));
    queries.scores.push_back(best.scores(q)[0]);
  }
  SparsePlan plan{{}, order_rows(network_.scoring(), queries, pool_)};
  plan.tuned = tune_sparse(network_.scoring(), plan.order, queries, network_.experiment().train.seed,
                           kRecallWanted, pool_);
  return plan;
}

// What terms beside the network add to the logits [neurons]; null: there are none.
const float* Tower::Session::direct(const Query& query) {
  if (!tower_->by_feature_) return nullptr;
  logits_.assign(tower_->network_.spread().neurons(), 0.0f);
  tower_->by_feature_->add_to(query, logits_.data());
  return logits_.data();
}

const float* Tower::Session::scores_of(const Sample& sample) {
  const Query query{sample, forward_.run(tower_->network_, sample)};
  const Scoring& scoring = tower_->network_.scoring();
  logits_.assign(tower_->network_.spread().neurons(), 0.0f);
  if (tower_->by_feature_) tower_->by_feature_->add_to(query, logits_.data());
  scoring.terms().front()->add_logits(query, logits_.data());
  for (size_t m = 0; m < scoring.modelets().size(); ++m) {
    const ModeletSpec& spec = scoring.modelets()[m]->spec();
    for (size_t row = 0; row < spec.neurons(); ++row) {
      float& logit = logits_[spec.begin + row];
      logit = scoring.factor({m, row}) * logit + tower_->constants_[spec.begin + row];
    }
  }
  return logits_.data();
}

void Tower::Session::sparse(const Sample& sample, size_t place, TopK& best) {
  MODELET_CHECK(tower_->sparse_ != nullptr, "prepare_sparse() first");
  const Query query{sample, forward_.run(tower_->network_, sample)};
  tower_->sparse_->rank(query.hidden, direct(query), scratch_, place, best);
}

}  // namespace modelet::shard
