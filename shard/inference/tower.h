// Tower: a network of a trained model, which scores the labels that it has. A model (shard/inference/model.h) has one, or
// one for each of its blocks of labels. Labels have the numbers that they have in the whole model.
//
// Owns the network. const functions may be called from any thread; the others by one thread, and they use several threads
// inside.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "base/array/aligned.h"
#include "base/parallel/thread_pool.h"
#include "shard/data/batch/batch.h"
#include "shard/inference/evaluation.h"
#include "shard/inference/sparse_index.h"
#include "shard/inference/sparse_plan.h"
#include "shard/inference/sparse_tuner.h"
#include "shard/layers/forward.h"
#include "shard/layers/network.h"
#include "shard/layers/scoring/feature_index.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::shard {

class Tower {
 public:
  // Loads the network of a checkpoint. `spread`: its labels. `pool` must outlive the tower. FormatError.
  Tower(Checkpoint checkpoint, LabelSpread spread, ThreadPool& pool);
  Tower(const Tower&) = delete;
  Tower& operator=(const Tower&) = delete;

  const Checkpoint& checkpoint() const { return checkpoint_; }
  Network& network() { return network_; }
  const Network& network() const { return network_; }

  // The k best of its labels, or of those among `among`.
  void rank(const Batch& batch, size_t k, TopK& best, const LabelSet* among = nullptr);
  // Adds the scores of its labels to scores [batch, labels of the model].
  void score(const Batch& batch, float* scores);
  // The same to scores [labels of the model, padded batch], of labels among `among`.
  void add_scores(const Batch& batch, Matrix scores, const LabelSet* among);
  // The activations of the last hidden layer [batch, width]; valid until the next batch.
  ConstMatrix embed(const Batch& batch);

  // Builds the index, tuned on these queries. What takes long to find out is kept beside the checkpoint
  // (shard/inference/sparse_plan.h).
  void prepare_sparse(const Batch& queries);
  bool has_sparse() const { return sparse_ != nullptr; }
  const TunedSparse& sparse_settings() const { return *tuned_; }
  const SparseIndex& sparse_index() const { return *sparse_; }

  // Scores the samples of one thread, and allocates nothing once it is warm. Must not outlive the tower.
  class Session {
   public:
    explicit Session(const Tower& tower) : tower_(&tower) {}

    // Calls use(label, score) for all labels, in the order of neurons.
    template <class Use>
    void score(const Sample& sample, const Use& use) {
      const float* const scores = scores_of(sample);
      const LabelSpread& spread = tower_->network_.spread();
      for (uint32_t neuron = 0; neuron < spread.neurons(); ++neuron)
        use(spread.label(neuron), scores[neuron]);
    }
    // Inserts the labels that the index finds into `best`, as those of sample `place`; after prepare_sparse().
    void sparse(const Sample& sample, size_t place, TopK& best);

   private:
    const float* direct(const Query& query);
    const float* scores_of(const Sample& sample);

    const Tower* tower_;
    SampleForward forward_;
    AlignedVector<float> logits_;
    SparseIndex::Memory scratch_;
  };

 private:
  SparsePlan plan_sparse(const Batch& batch);

  Checkpoint checkpoint_;
  ThreadPool& pool_;
  Network network_;
  ForwardPass pass_;
  LabelRanker ranker_;
  std::vector<float> constants_;            // [neurons] of their scores
  std::optional<FeatureIndex> by_feature_;  // if there are terms beside the network
  std::optional<TunedSparse> tuned_;
  std::unique_ptr<SparseIndex> sparse_;
};

}  // namespace modelet::shard
