// Network: the part of a model that one node holds, its modelets arranged in layers; with one node all of
// them. Owns the modelets. Used by the training thread.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/experiment/partition.h"
#include "base/parallel/thread_pool.h"
#include "shard/data/store/feature_rows.h"
#include "shard/data/store/label_spread.h"
#include "shard/layers/hidden_layers.h"
#include "shard/layers/input_layer.h"
#include "shard/layers/output/output_layer.h"
#include "shard/layers/scoring/scoring.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {

class Network {
 public:
  // Allocates the modelets of `held` (a subset of the partition, in its order). Their parameters are zero
  // until initialise() or restoring from a checkpoint. `trainable`: with optimiser state; without it the
  // network is for inference. `features`: those that have rows, as many as shape.input_rows(). `spread`: the
  // label of each of shape.labels neurons.
  Network(const Experiment& experiment, const DataShape& shape, std::span<const ModeletSpec> held,
          bool trainable, ThreadPool& pool, FeatureRows features, LabelSpread spread);
  // All labels have neurons.
  Network(const Experiment& experiment, const DataShape& shape, std::span<const ModeletSpec> held,
          bool trainable, ThreadPool& pool, FeatureRows features)
      : Network(experiment, shape, held, trainable, pool, std::move(features), spread_of(shape)) {}
  // All features have rows as well.
  Network(const Experiment& experiment, const DataShape& shape, std::span<const ModeletSpec> held,
          bool trainable, ThreadPool& pool)
      : Network(experiment, shape, held, trainable, pool, FeatureRows(shape.features)) {}
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  void initialise();

  InputLayer& input() { return *input_; }
  const InputLayer& input() const { return *input_; }
  // Dense hidden layers: layer 1 .. hidden_layers() - 1 of the partition.
  HiddenLayer& hidden(size_t layer) { return *hidden_[layer - 1]; }
  const HiddenLayer& hidden(size_t layer) const { return *hidden_[layer - 1]; }
  OutputLayer& output() { return *output_; }
  // How labels are scored. Terms may be added.
  Scoring& scoring() { return *scoring_; }
  const Scoring& scoring() const { return *scoring_; }
  size_t hidden_layers() const { return hidden_.size() + 1; }

  // Number of samples in the training data with each label [spread().labels()], those held out included. The output
  // modelets that are held keep their part. label_counts() needs all output modelets to be held here. It is
  // empty if one of them does not know its part.
  void set_label_counts(std::span<const uint32_t> counts);
  std::vector<uint32_t> label_counts() const;
  // Priors and trust follow from the label counts. set_label_counts() calls it; call it also after restoring.
  void set_scoring() { scoring_->set_counts(shape_); }

  // Finds the pairs of the direct path, if the experiment has one, in the samples that it trains on (`rows`,
  // ascending). Call it once, after initialise(). A model that is restored from a checkpoint has its pairs
  // already.
  void build_pairs(const Dataset& data, std::span<const uint32_t> rows);

  // For a restored model, which has learned from `earlier_rows` samples and goes on with others: adds their labels
  // and pairs to those that it has. Its classifiers are where the next ones begin. Instead of set_label_counts().
  void add_samples(const Dataset& data, std::span<const uint32_t> rows, uint64_t earlier_rows);

  std::span<const std::unique_ptr<Modelet>> modelets() const { return modelets_; }
  std::vector<Modelet*> modelets_of_layer(size_t layer) const;
  const LabelSpread& spread() const { return spread_; }
  const FeatureRows& features() const { return features_; }
  const Experiment& experiment() const { return experiment_; }
  const DataShape& shape() const { return shape_; }
  ThreadPool& pool() { return pool_; }
  size_t memory_bytes() const;

 private:
  Experiment experiment_;
  DataShape shape_;
  ThreadPool& pool_;
  LabelSpread spread_;
  FeatureRows features_;
  std::vector<std::unique_ptr<Modelet>> modelets_;
  std::unique_ptr<InputLayer> input_;
  std::vector<std::unique_ptr<HiddenLayer>> hidden_;
  std::unique_ptr<OutputLayer> output_;
  std::unique_ptr<Scoring> scoring_;
};

}  // namespace modelet::shard
