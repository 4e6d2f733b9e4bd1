// TrainingData: the samples of a run on one rank. It loads them, checks that the run was planned for this
// data, holds out some samples for validation, and divides the others into batches. Used by the training
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/parallel/thread_pool.h"
#include "comm/collectives/group.h"
#include "node_agent/step/exchange/sharding.h"
#include "node_agent/train/job/train_job.h"
#include "shard/data/batch/batch_feed.h"
#include "shard/data/batch/split.h"
#include "shard/data/store/dataset.h"
#include "shard/data/store/feature_rows.h"

namespace modelet::agent {

// Returns the function that is told how far the preparation of a text is.
using TellPreparing = std::function<shard::PrepareProgress(const std::string& file)>;

// The features that have rows: those that occur in the training data and, if the run goes on with other samples,
// those of the checkpoint.
shard::FeatureRows feature_rows(const TrainJob& job, const shard::Dataset& train);

class TrainingData {
 public:
  // Throws Error if the data cannot be read, or is not the job's. `pool` must outlive this object.
  TrainingData(const TrainJob& job, const Sharding& sharding, ThreadPool& pool, const TellPreparing& tell);
  TrainingData(const TrainingData&) = delete;
  TrainingData& operator=(const TrainingData&) = delete;

  const shard::Dataset& train() const { return train_; }
  const shard::Dataset& test() const { return test_; }
  const shard::FeatureRows& features() const { return features_; }
  shard::BatchFeed& feed() { return feed_; }
  std::span<const uint32_t> validation_rows() const { return split_.validation; }  // of train()
  std::vector<uint32_t> training_rows() const;                                     // the others
  bool validates() const { return !split_.validation.empty(); }

  // Gives the validation samples the labels of all neurons, including those that other ranks of `replica`
  // hold. Every rank must call it before each validation; only the first call exchanges labels. Uses
  // kLabelRounds rounds from tag.round upwards (rounds.h).
  void complete_validation_labels(comm::Group& replica, comm::Tag tag);

  // [labels] the number of samples of train() that have the label.
  std::vector<uint32_t> label_counts() const { return shard::count_labels(train_); }
  uint64_t memory_bytes() const { return train_.memory_bytes() + test_.memory_bytes(); }

 private:
  shard::Dataset train_, test_;
  shard::FeatureRows features_;
  shard::RowSplit split_;  // without the training rows, which feed_ has
  bool validation_has_labels_ = false;
  shard::BatchFeed feed_;  // last, so that it is destroyed before what it reads
};

}  // namespace modelet::agent
