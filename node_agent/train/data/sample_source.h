// SampleSource: where the samples of a rank come from. The ranks of a replica always have the same samples. The
// replicas of a run either share one training set and train on different parts of each batch, or each has
// samples of its own, which the others never see. What must be equal on all ranks nevertheless is what the
// second half of the interface answers.
//
// Used by the training thread. Immutable; the ranks of a process may share one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "node_agent/train/job/train_job.h"
#include "shard/data/store/dataset.h"
#include "shard/data/store/feature_rows.h"
#include "shard/data/store/label_spread.h"

namespace modelet::agent {

// Returns the function that is told how far the preparation of a text is.
using OnPreparing = std::function<shard::PrepareProgress(const std::string& file)>;

class SampleSource {
 public:
  virtual ~SampleSource() = default;

  // What this rank trains on, with at least the labels of these neurons, and what it is tested on. Throw Error if
  // the data cannot be read.
  virtual shard::Dataset train(const std::vector<shard::NeuronRange>& neurons,
                               const OnPreparing& on_preparing) const = 0;
  virtual shard::Dataset test(const shard::Dataset& train, const OnPreparing& on_preparing) const = 0;
  // Throws Error if the run was not planned for this data.
  virtual void require_planned(const shard::Dataset& train, const shard::Dataset& test) const = 0;
  // Whether each replica has a training set of its own.
  virtual bool of_replica() const = 0;
  // Whether train() has the labels of all neurons on every rank.
  virtual bool has_all_labels() const { return false; }

  // Equal on all ranks of the run, whatever `train` is here.
  virtual shard::FeatureRows feature_rows(const shard::Dataset& train) const = 0;
  virtual std::vector<uint32_t> label_counts(const shard::Dataset& train) const = 0;  // of all samples
  // `own`: steps in which this replica goes through its training samples once. A replica with fewer samples
  // than others goes through them again.
  virtual uint64_t steps_per_epoch(uint64_t own) const = 0;
  // The label of each output neuron.
  virtual shard::LabelSpread spread() const = 0;
  // Which of `rows` (ascending) of `train` the rank trains on.
  virtual std::vector<uint32_t> trained(const shard::Dataset& train, std::vector<uint32_t> rows) const {
    static_cast<void>(train);
    return rows;
  }
  virtual float unlabelled_weight() const { return 1; }  // of the loss of those without labels
};

// The data that the job names, equal on all ranks. `job` must outlive it.
std::unique_ptr<const SampleSource> shared_samples(const TrainJob& job);

// The features that have rows: those that occur in the training data and, if the run goes on with other samples,
// those of the checkpoint.
shard::FeatureRows feature_rows(const TrainJob& job, const shard::Dataset& train);

}  // namespace modelet::agent
