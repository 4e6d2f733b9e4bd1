// SampleGroup: what the shared output layer computes for samples that share an active set. That is the whole
// batch, or a group of sampling.group neighbours in it. Here samples are counted from the group's first one.
//
// Logits are kept transposed, [active, padded samples]. In this layout no product needs packing: weight rows and
// hidden rows are contiguous where the GEMM wants them so, and the softmax of all samples is computed
// column-wise without horizontal sums.
//
// Order of calls in a step: begin, add for each modelet, gather, forward of all samples in one or several ranges,
// gradients of each piece. Used by the training thread; parallel inside through the pool, except for gradients(),
// which may run on different pieces at the same time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/array/aligned.h"
#include "base/array/matrix.h"
#include "base/array/sample_range.h"
#include "base/array/scratch.h"
#include "base/parallel/thread_pool.h"
#include "shard/data/batch/batch.h"
#include "shard/layers/loss/loss.h"
#include "shard/layers/output/active_set.h"
#include "shard/layers/output/direct_path.h"
#include "shard/layers/output/output_options.h"
#include "shard/layers/output/output_products.h"

namespace modelet::shard {

// Targets in the order of one of their indices.
struct SortedTargets {
  std::vector<Target> targets;
  std::vector<size_t> offsets;  // [keys + 1] into targets

  void sort_by(uint32_t Target::*key, const std::vector<Target>& from, size_t keys);
};

class SampleGroup {
 public:
  // All references must outlive this object.
  SampleGroup(std::span<Modelet* const> modelets, const OutputOptions& options, const LabelSpread& spread,
              const LossFunction& loss, ThreadPool& pool);

  // Begins a step with some samples of a batch, which is kept by reference. Has no active neurons yet.
  void begin(const Batch& whole, SampleRange samples);
  // Adds the active neurons of a modelet (an index into `modelets`).
  void add(uint32_t modelet, const ActiveSet& set);
  // Gathers the weights, of `width` inputs, of the active neurons.
  void gather(size_t width);

  // The group's part of what the layer computes: columns of OutputLayer::statistics(), rows of positive() and
  // negative().
  struct Results {
    Matrix statistics, positive, negative;
  };
  // As OutputLayer::forward(). hidden [samples, d], hidden_transposed [d, padded samples].
  void forward(ConstMatrix hidden, ConstMatrix hidden_transposed, SampleRange range, const Results& results);

  // The gradients of a piece, with respect to its logits [count, padded samples] and its weights [count, d].
  // factor, target_factor: of the group's samples.
  void gradients(const ActiveRange& piece, const float* factor, const float* target_factor, float* by_logit,
                 float* by_weight) const;

  const Batch& batch() const { return *batch_; }
  SampleRange samples() const { return samples_; }  // of the batch
  size_t columns() const { return columns_; }       // padded samples
  std::span<const ActiveNeuron> neurons() const { return neurons_; }
  // Pieces of the neurons, each of at most OutputProducts::kLargestPiece.
  std::span<const ActiveRange> pieces() const { return pieces_; }

 private:
  void activate(SampleRange range, const Results& results);
  bool raise_references(SampleRange range, const Results& results);
  void logits_of_piece(const ActiveRange& piece, SampleRange range);
  void negative_of_samples(size_t begin, size_t end, const Results& results);
  size_t first_target(const ActiveRange& piece) const { return by_neuron_.offsets[piece.first]; }
  size_t last_target(const ActiveRange& piece) const { return by_neuron_.offsets[piece.first + piece.count]; }

  const std::span<Modelet* const> modelets_;
  const bool full_;
  const LossFunction& loss_;
  ThreadPool& pool_;
  const std::unique_ptr<OutputProducts> products_;
  std::optional<DirectPath> direct_;

  SampleRange samples_;
  size_t columns_ = 0, width_ = 0;  // padded samples, d
  const Batch* batch_ = nullptr;
  Batch part_;  // where batch_ is not the whole batch
  std::vector<ActiveNeuron> neurons_;
  std::vector<float> biases_;        // [active]
  std::vector<ActiveRange> pieces_;  // ranges of the products, divided
  Scratch<float> activations_;  // [active, padded samples]; logits of a piece until activate() has passed it

  std::vector<Target> targets_;
  SortedTargets by_sample_, by_neuron_;
  std::vector<float> target_logits_;  // of by_neuron_.targets

  AlignedVector<float> piece_statistics_;  // [pieces, padded samples]
};

}  // namespace modelet::shard
