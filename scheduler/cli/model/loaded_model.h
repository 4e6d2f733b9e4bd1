// LoadedModel: a whole model, loaded from a checkpoint, for the verbs of this process. It predicts a batch at
// a time, for data sets and for streams. Owns the model. One thread may call it; it uses several threads
// inside.
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
  // `threads` 0: as many as there are cores.
  LoadedModel(const std::string& path, uint32_t threads);

  // Loads data for this model. Progress and notes go to standard error.
  shard::Dataset load_data(const std::string& path) const;
  shard::QueryEncoder query_encoder() const { return predictor_.query_encoder(); }

  using Note = std::function<void(const std::string& text)>;

  // The names of the labels. They come from `file`, which has one name a line, or if that is empty from the
  // run's copy of the experiment's file, or from that file if it lies in the checkpoint's folder. (A model may
  // be a stranger's: it must not choose among the files of this machine.) Otherwise they are the names that
  // the encoder of the text knows; none without such an encoder. `warn` is told if the names of the experiment
  // are missing.
  std::vector<std::string> label_names(const std::string& file, const Note& warn) const;

  const Experiment& experiment() const { return predictor_.index().experiment; }
  const DataShape& shape() const { return predictor_.index().shape; }
  uint64_t step() const { return predictor_.index().step; }
  shard::Network& network() { return predictor_.network(); }
  const shard::Predictor& predictor() const { return predictor_; }

  // From here on only the likeliest labels are scored. Which labels are scored is tuned on `queries`.
  void make_sparse(const shard::Dataset& queries);

  // Finds the k best labels of the samples, a batch at a time and in order. A batch of a stream contains what
  // has arrived, so a sample never waits for one that has not come. If a sample is malformed, the error is
  // thrown after the samples before it have been answered. limit 0: no limit.
  using OnBatch = agent::Evaluator::OnBatch;
  void predict(const shard::Dataset& data, std::span<const uint32_t> rows, size_t k, const OnBatch& on_batch);
  void predict(shard::SampleReader& stream, uint64_t limit, size_t k, const OnBatch& on_batch);

  // The test data of the run, where its experiment says that it is. UsageError, followed by `advice`, unless
  // these are the samples with which the run was tested.
  shard::Dataset test_data(const std::string& advice) const;

  // Fits a calibration, which tells how sure the model's answers are. It is fitted on the file `labelled`, if
  // given. Otherwise the calibration beside the checkpoint is used, if there is one. Otherwise it is fitted
  // on the samples that the run held out for validation, or else on its test data. A fitted calibration is
  // written beside the checkpoint. Throws UsageError if there is nothing to fit it on. `note` is told what
  // was done.
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
