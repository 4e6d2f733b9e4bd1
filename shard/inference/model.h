// Model: a trained model, loaded from its checkpoint. It scores samples, one at a time or in batches, and knows what
// its labels are called and how likely they are right. Verbs, the server, the Python package and C++ programs use it
// as it is.
//
//   const shard::Model model("runs/quickstart");
//   for (const shard::ScoredLabel& found : model.predict("command line tool for json", 3))
//     std::cout << found.name << ' ' << found.score << '\n';
//
// Samples are scored against every label (dense), or against those that a SparseIndex finds (sparse). The index is
// built from the weights, whatever sampling the model was trained with.
//
// Answers may be restricted to some labels (LabelSet). These are then scored one by one, whatever the mode, so the answer
// is the best of them.
//
// A model of several towers (base/experiment/towers.h) answers with the best labels of all of them; if a label is in
// several towers, its score is the mean of those that it has there.
//
// Owns the model. const functions may be called from any thread: a single sample is scored on the calling thread.
// Functions on batches are not const: one thread may call them, and they use several threads inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/parallel/thread_pool.h"
#include "shard/data/batch/batch.h"
#include "shard/data/read/sample_reader.h"
#include "shard/data/store/dataset.h"
#include "shard/data/store/query_encoder.h"
#include "shard/inference/calibration.h"
#include "shard/inference/evaluation.h"
#include "shard/inference/label_set.h"
#include "shard/inference/tower.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::shard {

enum class SearchMode : uint8_t { kDense, kSparse };

struct ScoredLabel {
  uint32_t label = 0;
  float score = 0;
  double probability = 0;  // of being right; 0 if the model has no calibration
  std::string_view name;   // valid as long as the model; empty if it has no names
};

// A sample of a batch, whose memory it refers to.
Sample sample_of(const Batch& batch, size_t s);

class Model {
 public:
  // Loads a checkpoint's folder, or the best checkpoint of a run (find_model()). Loading, prepare_sparse() and
  // functions on batches use `threads` threads. `labels`: a file with the names of the labels, one a line. Without it
  // they come from the run's copy of data.labels, or from that file if it lies in the checkpoint's folder (a model may
  // be a stranger's: it must not choose among the files of this machine), or from the encoder of the text.
  // UsageError, FormatError.
  explicit Model(const std::filesystem::path& checkpoint, unsigned threads = 1,
                 const std::filesystem::path& labels = {});
  // The memory that its weights will take.
  static uint64_t bytes_to_load(const std::filesystem::path& checkpoint);

  const std::filesystem::path& folder() const { return checkpoint_.folder(); }
  const CheckpointIndex& index() const { return checkpoint_.index(); }
  const Experiment& experiment() const { return index().experiment; }
  const DataShape& shape() const { return index().shape; }
  uint64_t step() const { return index().step; }
  uint64_t fingerprint() const { return fingerprint_of(index()); }
  // One, or one for each task.
  std::span<const std::unique_ptr<Tower>> towers() const { return towers_; }
  // [labels] the share of a tower in the score of a label that it has: 1 / how many have it. Empty: each is in one.
  std::span<const float> shares() const { return shares_; }
  // Of a model of one.
  Network& network() { return towers_.front()->network(); }
  const Network& network() const { return towers_.front()->network(); }
  // Training samples with each label [labels]; empty: not known.
  std::vector<uint32_t> label_counts() const;

  // State of the encoder of the model's data (shard/data/encode/encoder.h); empty: XMC text.
  std::span<const std::byte> encoder() const { return encoder_; }
  // Makes samples of what the model is asked, as was done with its training data.
  const QueryEncoder& query_encoder() const { return query_encoder_; }
  // Opens data for this model: encoded and normalised as it was trained. UsageError if it has other features
  // or labels.
  Dataset load_data(const std::filesystem::path& path, const PrepareProgress& progress = {}) const;

  // Of a model with histories (docs/columns.md): records with labels become events that answers know from now on
  // (Encoder::add_events()). They are also written to kEventsFile in the folder of the run, or in the checkpoint's if
  // it is outside of one, which the constructor reads. If that fails, there are no new events. One process at a time may
  // add events to a run.
  static constexpr const char* kEventsFile = "histories.jsonl";
  NewEvents add_events(LineReader text) const;

  // [labels], or empty if they have no names.
  std::span<const std::string> label_names() const { return names_.names; }
  // Whether training had a file of names (data.labels) that is not here.
  bool misses_names() const { return names_.missing; }
  // Made when it is first asked for.
  const LabelNumbers& label_numbers() const;
  // Labels that a file names, one a line, or numbers if labels have no names. UsageError, FormatError.
  LabelSet read_label_set(const std::filesystem::path& file) const;

  // With a calibration, predictions have probabilities.
  const std::optional<Calibration>& calibration() const { return calibration_; }
  void set_calibration(std::optional<Calibration> calibration) { calibration_ = std::move(calibration); }

  // The k best labels, best first; fewer if `among` has fewer.
  std::vector<ScoredLabel> predict(const std::string& text, size_t k) const;
  std::vector<ScoredLabel> predict(const Sample& sample, size_t k, SearchMode mode = SearchMode::kDense,
                                   const LabelSet* among = nullptr) const;

  // The same of a batch. Its raw result becomes what predict() returns by interpret(), for which it must have
  // depth(k) labels for each sample: probabilities are normalised over more labels.
  void predict(const Batch& batch, size_t k, TopK& best, SearchMode mode = SearchMode::kDense,
               const LabelSet* among = nullptr);
  size_t depth(size_t k) const;
  std::vector<ScoredLabel> interpret(const TopK& best, size_t sample, size_t k) const;

  // Passes on the k best labels of many samples, a batch at a time and in order. A batch of a stream contains what
  // has arrived, so a sample never waits for one that has not come. If a sample is malformed, the error is thrown
  // after the samples before it. limit 0: no limit.
  using OnBatch = std::function<void(const Batch& batch, const TopK& best)>;
  void predict(const Dataset& data, std::span<const uint32_t> rows, size_t k, SearchMode mode,
               const OnBatch& on_batch, const LabelSet* among = nullptr);
  void predict(SampleReader& stream, uint64_t limit, size_t k, SearchMode mode, const OnBatch& on_batch,
               const LabelSet* among = nullptr);
  static constexpr size_t kBatch = 512;  // samples scored together

  // The scores of all labels: scores [batch, labels].
  void score(const Batch& batch, float* scores);
  // The activations of the last hidden layer [batch, width()], those of all towers side by side; valid until the next
  // batch.
  ConstMatrix embed(const Batch& batch);
  size_t width() const;

  // Builds the index, tuned on up to kTuningQueries samples, spread evenly over `data`; their labels are
  // ignored. The same model and data give the same index. What takes long to find out is kept beside the
  // checkpoint (shard/inference/sparse_plan.h). UsageError if there are fewer than kFewestQueries, or
  // if labels have several scores.
  static constexpr size_t kTuningQueries = 2000, kFewestQueries = 50;
  void prepare_sparse(const Dataset& data);
  bool has_sparse() const { return towers_.front()->has_sparse(); }
  // The result of tuning, of a model of one tower: settings, and how often sparse and dense scoring agree on the best
  // label of these queries.
  const TunedSparse& sparse_settings() const { return towers_.front()->sparse_settings(); }
  size_t sparse_bytes() const;  // of the index

  // Scores the samples of one thread, and allocates nothing once it is warm. Must not outlive the model;
  // prepare_sparse() must be done before.
  class Session {
   public:
    // The k best labels; valid until the next call.
    const TopK& dense(const Sample& sample, size_t k, const LabelSet* among = nullptr);
    const TopK& sparse(const Sample& sample, size_t k);  // after prepare_sparse()

    // The same, written to place `place` of `best`.
    void sparse(const Sample& sample, size_t place, TopK& best);

   private:
    friend class Model;
    explicit Session(const Model& model);
    void dense(const Sample& sample, TopK& best, const LabelSet* among);

    const Model* model_;
    std::vector<Tower::Session> towers_;
    std::vector<float> sums_;  // [labels] of the scores of several towers
    TopK best_;
  };
  Session session() const { return Session(*this); }

 private:
  struct LabelNames {
    std::vector<std::string> names;
    bool missing = false;
  };
  LabelNames read_names(const std::filesystem::path& file) const;
  std::filesystem::path events_file() const;
  void read_events() const;
  void keep_events(const std::string& lines) const;
  void load_towers();
  void predict_sparse(const Batch& batch, size_t k, TopK& best);
  void rank_means(const Batch& batch, size_t k, TopK& best, const LabelSet* among);

  Checkpoint checkpoint_;
  std::vector<std::byte> encoder_;
  QueryEncoder query_encoder_;
  LabelNames names_;
  std::optional<Calibration> calibration_;
  ThreadPool pool_;
  std::vector<std::unique_ptr<Tower>> towers_;
  std::vector<float> shares_;  // [labels] of a tower in the label's score; empty: each label is in one tower
  TopK of_tower_;
  Buffer scores_;                   // [labels, padded batch] if labels are in several towers
  std::vector<RowRanker> rankers_;  // one per thread, for these
  Buffer embedded_;
  std::vector<Session> sessions_;                       // one per thread, for sparse batches
  mutable std::mutex adding_;                           // guards the file of events
  mutable std::mutex mutex_;                            // guards idle_ and label_numbers_
  mutable std::vector<std::unique_ptr<Session>> idle_;  // for predict() on single samples
  mutable std::unique_ptr<const LabelNumbers> label_numbers_;
};

}  // namespace modelet::shard
