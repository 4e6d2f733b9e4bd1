// The wide output layer on one node: forward and backward over the active neurons of the modelets held here.
//
// Order of calls in a step: select, gather, forward of all samples in one or several ranges, [the caller
// exchanges statistics, positive() and negative()], then gradient_square_sum (only for clipping) and update.
// Nothing changes before update(), so a step whose exchange failed can simply begin again.
//
// Used by the training thread; parallel inside through the pool. B: batch, d: width of the last hidden layer.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/array/aligned.h"
#include "base/array/matrix.h"
#include "base/array/sample_range.h"
#include "base/parallel/thread_pool.h"
#include "shard/data/batch/batch.h"
#include "shard/layers/loss/loss.h"
#include "shard/layers/output/active_set.h"
#include "shard/layers/output/direct_path.h"
#include "shard/layers/output/output_options.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {

class OutputLayer {
 public:
  virtual ~OutputLayer() = default;

  // Chooses the active neurons. hidden [B, d]; its values are read only if the set depends on them
  // (retrieves_neurons()).
  virtual void select(const Batch& batch, ConstMatrix hidden, uint64_t step) = 0;

  // Gathers the weights of the active neurons.
  virtual void gather() = 0;

  // hidden [B, d], hidden_transposed [d, padded B]: the same in all calls of a step, and kept by reference
  // until its end. Fills the range's part of statistics(), positive(), negative(); the division of the batch
  // into ranges changes no bit.
  virtual void forward(ConstMatrix hidden, ConstMatrix hidden_transposed, SampleRange range) = 0;

  // Clears the range's part of positive() and negative() where hidden [B, d] is zero. No gradient passes there, so
  // it does not have to travel.
  void clear_inactive(ConstMatrix hidden, SampleRange range);

  // factor, target_factor: this rank's arrays of BatchLoss.
  virtual double gradient_square_sum(ConstMatrix hidden, const float* factor, const float* target_factor) = 0;
  virtual void update(ConstMatrix hidden, const float* factor, const float* target_factor,
                      const UpdateRule& rule) = 0;

  // The gradient with respect to the scales of the direct path, from the statistics of all ranks, and the
  // update of the scales. Both are the same on all ranks. Without centroids there are no scales, and nothing
  // happens.
  DirectPath::ScaleGradient scale_gradient(const BatchLoss& loss,
                                           std::span<const ConstMatrix> statistics) const;
  void update_scales(const DirectPath::ScaleGradient& gradient, const UpdateRule& rule);

  // Neurons that took part, summed over the modelets here (per sample mode: over samples too).
  virtual size_t active_neurons() const = 0;

  // [kStatistics, padded B], and with centroids kScaleStatistics rows more.
  ConstMatrix statistics() const { return {statistics_.data(), statistics_rows(), columns_, columns_}; }
  // [B, d]: per sample the sum of activation * weight row over the active neurons, and of weight rows over
  // the labels. If the loss is not normalised, positive() already has negative() subtracted.
  ConstMatrix positive() const { return {positive_.data(), samples_, width_, width_}; }
  ConstMatrix negative() const { return {negative_.data(), samples_, width_, width_}; }

  // Keeps low-rank projections or hash tables close to the weights. Updates the running mean of the
  // activations. Every sampling.rehash_every steps it checks how stale they are, and then makes projections
  // anew, or starts a re-hash of the changed rows in the background. Call after update().
  void maintain(ConstMatrix hidden, uint64_t step);

  // Builds hash tables anew from the present weights, and drops a re-hash that has begun. The next maintain()
  // makes the projections.
  void rebuild_retrieval();

  // Waits for a re-hash under way: it is part of what a checkpoint saves.
  void wait_for_rehash() { rehash_.wait(); }

  const std::vector<Modelet*>& modelets() const { return modelets_; }

 protected:
  OutputLayer(std::vector<Modelet*> modelets, const OutputOptions& options, const LabelSpread& spread,
              ThreadPool& pool);
  void resize(size_t samples, size_t width);
  size_t statistics_rows() const { return kStatistics + (options_.direct_path ? kScaleStatistics : 0); }

  std::vector<Modelet*> modelets_;
  const OutputOptions options_;
  const LabelSpread& spread_;
  ThreadPool& pool_;
  const std::unique_ptr<LossFunction> loss_;
  size_t samples_ = 0, columns_ = 0, width_ = 0;  // B, padded B, d
  AlignedVector<float> statistics_, positive_, negative_;

 private:
  void maintain_projections(ConstMatrix hidden, bool look);
  void maintain_tables();

  std::vector<float> mean_;
  BackgroundTask rehash_;  // last: it ends before what it works on
};

// The layer for the sampling mode; output_layer.cc has the table. `spread` must outlive it.
std::unique_ptr<OutputLayer> make_output_layer(std::vector<Modelet*> modelets, const OutputOptions& options,
                                               const LabelSpread& spread, ThreadPool& pool);

}  // namespace modelet::shard
