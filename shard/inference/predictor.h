// Predictor: a trained model that answers queries in this process. It is made for single queries with low
// latency: one sample in, its best labels out, on one thread, without allocating once it is warm.
//
//   shard::Predictor model("runs/quickstart", 4);
//   model.prepare_sparse(data);                       // once; queries like those to come
//   auto session = model.session();                   // one per thread
//   const shard::TopK& best = session.sparse(sample, 5);
//
// dense() scores every label; sparse() those that a SparseIndex finds. The index is built from the weights,
// whatever sampling the model was trained with.
//
// Owns the model. const functions may be called from any thread. A Session belongs to one thread and must not
// outlive its Predictor; prepare_sparse() must be done before sessions are made.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/array/aligned.h"
#include "base/parallel/thread_pool.h"
#include "shard/data/batch/batch.h"
#include "shard/data/store/dataset.h"
#include "shard/data/store/query_encoder.h"
#include "shard/inference/evaluation.h"
#include "shard/inference/sparse_index.h"
#include "shard/inference/sparse_plan.h"
#include "shard/inference/sparse_tuner.h"
#include "shard/layers/network.h"
#include "shard/layers/scoring/feature_index.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::shard {

class Predictor {
 public:
  // Loads a checkpoint's folder, or the best checkpoint of a run (find_model()). Loading, prepare_sparse()
  // and predict_sparse() use `threads` threads. UsageError, FormatError.
  Predictor(const std::filesystem::path& checkpoint, unsigned threads);
  // The memory that its weights will take.
  static uint64_t bytes_to_load(const std::filesystem::path& checkpoint);

  const CheckpointIndex& index() const { return checkpoint_.index(); }
  const std::filesystem::path& folder() const { return checkpoint_.folder(); }
  // State of the encoder of the model's data (shard/data/encode/encoder.h); empty: XMC text.
  std::span<const std::byte> encoder() const { return encoder_; }
  Network& network() { return network_; }
  uint64_t fingerprint() const { return fingerprint_of(index()); }
  // Makes samples of what the model is asked, as was done with its training data. It may outlive the
  // Predictor.
  QueryEncoder query_encoder() const;

  // Opens data for this model: encoded and normalised as it was trained. UsageError if it has other features
  // or labels.
  Dataset load_data(const std::filesystem::path& path, const PrepareProgress& progress = {}) const;

  // Builds the index, tuned on up to kTuningQueries samples, spread evenly over `data`; their labels are
  // ignored. The same model and data give the same index. What takes long to find out is kept beside the
  // checkpoint (shard/inference/sparse_plan.h). UsageError if there are fewer than kFewestQueries.
  static constexpr size_t kTuningQueries = 2000, kFewestQueries = 50;
  void prepare_sparse(const Dataset& data);
  // The result of tuning: settings, and how often sparse and dense scoring agree on the best label of these
  // queries.
  const TunedSparse& sparse_settings() const { return *tuned_; }
  const SparseIndex& sparse_index() const { return *sparse_; }

  // Answers queries of one thread.
  class Session {
   public:
    // The k best labels; valid until the next call.
    const TopK& dense(const Sample& sample, size_t k);
    const TopK& sparse(const Sample& sample, size_t k);  // after prepare_sparse()

    // The same, written to place `place` of `best`.
    void sparse(const Sample& sample, size_t place, TopK& best);

   private:
    friend class Predictor;
    explicit Session(const Predictor& predictor) : predictor_(&predictor) {}
    const float* hidden(const Sample& sample);
    const float* direct(const Query& query);

    const Predictor* predictor_;
    AlignedVector<float> activations_[2];  // of one layer and of the next
    AlignedVector<float> scores_, direct_;
    std::vector<uint32_t> rows_;  // of the sample's features that have rows, and their values
    std::vector<float> values_;
    SparseIndex::Memory scratch_;
    TopK best_;
  };
  Session session() const { return Session(*this); }

  // The best labels of a whole batch by sparse(), in parallel.
  void predict_sparse(const Batch& batch, size_t k, TopK& best);

 private:
  AlignedVector<float> tuning_queries(const Batch& batch) const;
  SparsePlan plan_sparse(ConstMatrix queries, const Batch& batch);

  Checkpoint checkpoint_;
  std::vector<std::byte> encoder_;
  ThreadPool pool_;
  std::vector<ModeletSpec> partition_;
  Network network_;
  std::vector<float> constants_;            // [neurons] of their scores
  std::optional<FeatureIndex> by_feature_;  // if there are terms beside the network
  std::optional<TunedSparse> tuned_;
  std::unique_ptr<SparseIndex> sparse_;
  std::vector<Session> sessions_;  // one per thread, for predict_sparse()
};

}  // namespace modelet::shard
