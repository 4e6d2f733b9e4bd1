// Network: what one node holds of a model: its modelets, arranged in layers. All of them, if there is one
// node. Owns the modelets. Used by the training thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/cut.h"
#include "shard/hidden_layers.h"
#include "shard/label_spread.h"
#include "shard/modelet.h"
#include "shard/output_layer.h"
#include "shard/thread_pool.h"

namespace modelet::shard {

class Network {
 public:
  // Allocates the modelets of `held` (a subset of the cut, in its order). Their parameters are zero until
  // initialise() or restoring from a checkpoint. `trainable`: with optimiser state; without it the network is
  // for inference.
  Network(const Experiment& experiment, const DataShape& shape, std::span<const ModeletSpec> held,
          bool trainable, ThreadPool& pool);

  void initialise();

  InputLayer& input() { return *input_; }
  // Dense hidden layers: layer 1 .. hidden_layers() - 1 of the cut.
  HiddenLayer& hidden(size_t layer) { return *hidden_[layer - 1]; }
  OutputLayer& output() { return *output_; }
  size_t hidden_layers() const { return hidden_.size() + 1; }

  // How many train samples have each label [labels]. The output modelets that are held keep their part. To
  // get them, hold all output modelets; empty if one does not know its part.
  void set_label_counts(std::span<const uint32_t> counts);
  std::vector<uint32_t> label_counts() const;

  std::span<const std::unique_ptr<Modelet>> modelets() const { return modelets_; }
  std::vector<Modelet*> modelets_of_layer(size_t layer) const;
  const LabelSpread& spread() const { return spread_; }
  const Experiment& experiment() const { return experiment_; }
  const DataShape& shape() const { return shape_; }
  ThreadPool& pool() { return pool_; }
  size_t memory_bytes() const;

 private:
  Experiment experiment_;
  DataShape shape_;
  ThreadPool& pool_;
  LabelSpread spread_;
  std::vector<std::unique_ptr<Modelet>> modelets_;
  std::unique_ptr<InputLayer> input_;
  std::vector<std::unique_ptr<HiddenLayer>> hidden_;
  std::unique_ptr<OutputLayer> output_;
};

}  // namespace modelet::shard
