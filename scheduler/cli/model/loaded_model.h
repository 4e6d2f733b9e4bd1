// LoadedModel: a whole model from a checkpoint, for inference by the verbs of this process: a batch at a time,
// from data sets and from streams. Owns the model; one thread, parallel inside.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/collectives/group.h"
#include "node_agent/train/evaluation/evaluator.h"
#include "shard/data/read/sample_reader.h"
#include "shard/data/store/dataset.h"
#include "shard/inference/calibration.h"
#include "shard/inference/predictor.h"

namespace modelet::cli {

class LoadedModel {
 public:
  // threads 0: all cores.
  LoadedModel(const std::string& path, uint32_t threads);

  // Data for this model; progress and notes go to standard error.
  shard::Dataset load_data(const std::string& path) const;
  shard::QueryEncoder query_encoder() const { return predictor_.query_encoder(); }

  // The names in a file with one a line; without a file, those that the encoder of the text knows, if there
  // is one.
  std::vector<std::string> label_names(const std::string& file) const;

  const Experiment& experiment() const { return predictor_.index().experiment; }
  const DataShape& shape() const { return predictor_.index().shape; }
  uint64_t step() const { return predictor_.index().step; }
  shard::Network& network() { return predictor_.network(); }
  const shard::Predictor& predictor() const { return predictor_; }

  // From here on only the likeliest labels are scored. Tuned on `queries`.
  void make_sparse(const shard::Dataset& queries);

  // The k best labels, a batch at a time and in order. Of a stream batches are as large as what is there: a
  // sample never waits for one that has not come. What is wrong with a sample is thrown when those before it
  // have been answered. limit 0: all.
  using OnBatch = agent::Evaluator::OnBatch;
  void predict(const shard::Dataset& data, std::span<const uint32_t> rows, size_t k, const OnBatch& on_batch);
  void predict(shard::SampleReader& stream, uint64_t limit, size_t k, const OnBatch& on_batch);

  // How sure the model's answers are. From the file `labelled`, if it is not empty; else what is kept beside
  // the checkpoint; else from the samples that the run held out for validation, or else its test data. What
  // was fitted is kept. UsageError if there is nothing to fit it on. `note` is told what was done.
  using Note = std::function<void(const std::string& text)>;
  shard::Calibration calibrate(const std::string& labelled, const Note& note);

 private:
  struct HeldOut {
    shard::Dataset data;
    std::vector<uint32_t> rows;
    std::string name;
  };
  HeldOut held_out(const std::string& labelled) const;
  void score(const shard::Batch& batch, size_t k, shard::TopK& best);

  shard::Predictor predictor_;
  agent::Sharding sharding_;
  std::unique_ptr<comm::Group> group_;
  agent::Evaluator evaluator_;
  bool sparse_ = false;
};

}  // namespace modelet::cli
