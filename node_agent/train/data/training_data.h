// TrainingData: the samples of a run on one rank. It takes them from a source (sample_source.h), holds out some samples for validation, and divides the others into batches. Used by the training
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/parallel/thread_pool.h"
#include "comm/collectives/group.h"
#include "node_agent/step/exchange/sharding.h"
#include "node_agent/train/data/sample_source.h"
#include "node_agent/train/job/train_job.h"
#include "shard/data/batch/batch_feed.h"
#include "shard/data/batch/split.h"
#include "shard/data/store/dataset.h"

namespace modelet::agent {

class TrainingData {
 public:
  // Throws Error if the data cannot be read, or is not the job's. `job` and `pool` must outlive this object.
  TrainingData(const TrainJob& job, const Sharding& sharding, ThreadPool& pool,
               const OnPreparing& on_preparing);
  TrainingData(const TrainingData&) = delete;
  TrainingData& operator=(const TrainingData&) = delete;

  const shard::Dataset& train() const { return train_; }
  const shard::Dataset& test() const { return test_; }
  const shard::FeatureRows& features() const { return features_; }
  shard::LabelSpread spread() const { return source_.spread(); }
  shard::BatchFeed& feed() { return feed_; }
  std::span<const uint32_t> validation_rows() const { return split_.validation; }  // of train()
  std::vector<uint32_t> training_rows() const;  // the others, as far as they are trained on
  bool of_replica() const { return source_.of_replica(); }      // the samples are this replica's own
  bool validates() const { return !split_.validation.empty(); }

  // Gives the validation samples the labels of all neurons, including those that other ranks of `replica`
  // hold. Every rank must call it before each validation; only the first call exchanges labels. Uses
  // kLabelRounds rounds from tag.round upwards (rounds.h).
  void complete_validation_labels(comm::Group& replica, comm::Tag tag);

  // Equal on all ranks: the training samples of all replicas together, those that are held out included; and the
  // steps of an epoch.
  uint64_t samples_of_run() const { return samples_of_run_; }
  uint64_t steps_per_epoch() const { return source_.steps_per_epoch(feed_.steps_per_epoch()); }
  // [labels] how many of these samples have the label.
  std::vector<uint32_t> label_counts() const { return source_.label_counts(train_); }
  // How much a replica's own samples take would tell others how many they are.
  uint64_t memory_bytes() const { return (of_replica() ? 0 : train_.memory_bytes()) + test_.memory_bytes(); }

 private:
  const std::unique_ptr<const SampleSource> shared_;  // unless the job has a source
  const SampleSource& source_;
  shard::Dataset train_, test_;
  shard::FeatureRows features_;
  uint64_t samples_of_run_;
  shard::RowSplit split_;  // without the training rows, which feed_ has
  bool validation_has_labels_ = false;
  shard::BatchFeed feed_;  // last, so that it is destroyed before what it reads
};

}  // namespace modelet::agent
