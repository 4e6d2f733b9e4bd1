// The best labels of each sample. shard/inference/metrics.h says how good they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/array/aligned.h"
#include "base/array/matrix.h"
#include "base/array/padding.h"
#include "base/parallel/thread_pool.h"
#include "shard/data/batch/batch.h"
#include "shard/inference/label_set.h"
#include "shard/kernels/simd/instruction_set.h"
#include "shard/layers/scoring/scoring.h"

namespace modelet::shard {

// The k best labels of each sample, best first; equal scores: lower label first, so the result does not
// depend on the order of insertion. Unfilled places have score -infinity and label kNoLabel.
class TopK {
 public:
  static constexpr uint32_t kNoLabel = ~uint32_t{0};

  void reset(size_t samples, size_t k);
  size_t k() const { return k_; }
  size_t samples() const { return samples_; }

  // Any score, also an infinite one; NaN is left out.
  void insert(size_t sample, float score, uint32_t label) {
    if (score >= thresholds_[sample]) insert_slowly(sample, score, label);
  }
  void merge(const TopK& other);

  std::span<const float> scores(size_t sample) const { return {scores_.data() + sample * k_, k_}; }
  std::span<const uint32_t> labels(size_t sample) const { return {labels_.data() + sample * k_, k_}; }
  // [padded samples] score that a label must reach; NaN, which no score reaches, in the padding.
  const float* thresholds() const { return thresholds_.data(); }

 private:
  void insert_slowly(size_t sample, float score, uint32_t label);

  size_t samples_ = 0, k_ = 0;
  std::vector<float> scores_;
  std::vector<uint32_t> labels_;
  AlignedVector<float> thresholds_;
};

// Finds the best labels of a batch by their scores, a row of scores at a time. One thread.
class RowRanker {
 public:
  void reset(size_t samples, size_t k) {
    best_.reset(samples, k);
    positions_.resize(padded(samples));
  }
  // scores [padded samples] of a label.
  void insert(const float* scores, uint32_t label);
  const TopK& best() const { return best_; }

 private:
  TopK best_;
  std::vector<uint32_t> positions_;
};

// What a ranking is for. kProposals: what training samples may be taken for, in less time. Of a model with a
// direct path, only labels that have training samples are ranked: to a classifier without any, negatives say
// nothing new.
enum class Ranking { kPrediction, kProposals };

// Finds the best labels among those of a scoring, to which it refers. Where products of pairs pay and weights are
// bf16, activations are rounded to bf16 as in training, and scores differ from those of floats by about a
// thousandth (decision 31). Keeps scratch memory: one thread uses it, and it runs loops on the
// pool.
class LabelRanker {
 public:
  // `pairs`: weights in bf16 are multiplied as pairs, not as the floats they stand for.
  LabelRanker(const Scoring& scoring, ThreadPool& pool, bool pairs = kernels::pairs_pay());

  // Scores every neuron, or those that may be proposed. hidden_transposed [d, padded samples]. `batch`: the
  // samples; only terms that need features read them. `among`: only these labels are scored; null: all.
  void rank_dense(ConstMatrix hidden_transposed, size_t samples, size_t k, TopK& best,
                  const Batch* batch = nullptr, Ranking ranking = Ranking::kPrediction,
                  const LabelSet* among = nullptr);
  // Adds the scores of its labels to scores [samples, labels of the model].
  void score_dense(ConstMatrix hidden_transposed, size_t samples, float* scores,
                   const Batch* batch = nullptr);
  // The same in the layout in which labels are scored: a row for each label of the model, [padded samples]. `among` as
  // for rank_dense().
  void add_scores(ConstMatrix hidden_transposed, size_t samples, Matrix scores, const Batch* batch,
                  const LabelSet* among);

 private:
  struct PerThread;

  // Calls use(scratch, label, scores [padded samples]) for each neuron that is ranked, on the pool's threads.
  template <class Use>
  void for_each_neuron(ConstMatrix hidden_transposed, Ranking ranking, const LabelSet* among, size_t samples,
                       const Batch* batch, const Use& use);
  // The rows of a modelet that are ranked, ascending. Valid until the next call.
  std::span<const uint32_t> ranked(const Modelet& modelet, Ranking ranking, const LabelSet* among);

  const Scoring& scoring_;
  ThreadPool& pool_;
  bool pairs_;
  QueryBatch queries_;
  std::vector<uint32_t> ranked_;
  struct PerThread {
    TermScratch terms;
    AlignedVector<float> logits;
    RowRanker ranker;
  };
  std::vector<PerThread> scratch_;  // one per thread
};

}  // namespace modelet::shard
