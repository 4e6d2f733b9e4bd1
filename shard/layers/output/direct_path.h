// DirectPath: the direct path from features to labels (shard/data/pairs/pairs.h) within a step of the shared output
// layer: what it adds to the logits of the active neurons, and how its scales and weights are trained.
//
// What it adds needs no activations, so it is computed for the whole batch when the active set is known. A
// sample is taken out of the sums of its own labels (leave-one-out): the cosine of a label of sample x is
// cos(x, sums - x), and its scale that of a label with one sample less. So what is learned of the scales holds
// for samples that were not trained on, and a label that is seen once teaches nothing of itself.
//
// The scales are common to all ranks. Each rank tells, for each sample and class, the sum over its active
// neurons of activation * cosine, and over labels of the cosine: kScaleStatistics more rows of
// OutputLayer::statistics(). From these every rank computes the same gradient. Nothing else travels.
//
// Order of calls in a step: assign; add_logits and add_statistics of each piece for each range; then
// update_weights of each piece, update_scales. Functions on different pieces may run at the same time.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "base/array/matrix.h"
#include "base/array/sample_range.h"
#include "base/array/scratch.h"
#include "base/parallel/thread_pool.h"
#include "shard/data/batch/batch.h"
#include "shard/data/pairs/batch_features.h"
#include "shard/data/pairs/pair_lanes.h"
#include "shard/layers/loss/loss.h"
#include "shard/layers/output/active_set.h"
#include "shard/layers/output/output_options.h"
#include "shard/layers/output/output_products.h"
#include "shard/modelet/modelet.h"
#include "shard/modelet/parameters.h"

namespace modelet::shard {

// The scales are few, and each gets a gradient from all samples: their learning rate is this multiple of that of
// weights.
inline constexpr float kScaleRate = 10;

inline constexpr size_t kScaleStatistics = 2 * kFrequencyClasses;  // rows: of activations, of labels

class DirectPath {
 public:
  // `modelets` of the layer; all have a direct path.
  DirectPath(std::span<Modelet* const> modelets, const OutputOptions& options, ThreadPool& pool);

  // The active neurons of a step, in pieces, and the labels among them, by neuron: those of neuron a from
  // offsets[a] to offsets[a + 1]. All are kept by reference until the step ends; the batch is in both halves.
  struct Active {
    const Batch* batch;
    std::span<const ActiveNeuron> neurons;
    std::span<const ActiveRun> pieces;
    std::span<const Target> targets;
    std::span<const size_t> offsets;
  };
  void assign(const Active& active);

  // logits [count, range.columns() of padded B] of a piece += what the direct path adds.
  void add_logits(const ActiveRun& piece, SampleRange range, float* logits) const;
  // Reads the activations of piece i [count, columns of padded B]; then the range's part of the statistics
  // [kScaleStatistics, padded B] from what all pieces have read.
  void read_activations(size_t i, SampleRange range, const float* activations);
  void fill_statistics(SampleRange range, Matrix statistics) const;

  // gradients [count, padded B] by the logits of a piece: one step of its pairs' weights, or the sum of their
  // gradients' squares.
  void update_weights(const ActiveRun& piece, const float* gradients, const UpdateRule& rule);
  double square_sum(const ActiveRun& piece, const float* gradients);

  // By the scales, from the statistics of all ranks: the rows from `first` on.
  using ScaleGradient = std::array<float, kVectorFloats>;
  static ScaleGradient scale_gradient(const BatchLoss& loss, std::span<const ConstMatrix> statistics,
                                      size_t first, size_t samples);
  void update_scales(ScaleGradient gradient, const UpdateRule& rule);

 private:
  // A label of a sample, whose cosine is to the sums without it.
  struct OwnCosine {
    float cosine = 0;
    size_t frequency_class = 0;
  };

  const Pairs& pairs_of(size_t a) const { return modelets_[active_.neurons[a].modelet]->direct()->pairs; }
  Pairs& pairs_of(size_t a) { return modelets_[active_.neurons[a].modelet]->direct()->pairs; }
  void compute(const ActiveRun& piece);
  void compute_cosines(size_t first, size_t count, PairLanes& lanes);
  void compute_sums(size_t first, size_t count, PairLanes& lanes);
  OwnCosine own_cosine(const Target& target, size_t lane, const PairLanes& lanes) const;
  template <class Use>
  void for_each_lanes(const ActiveRun& piece, const float* gradients, const Use& use);

  std::vector<Modelet*> modelets_;
  const OutputOptions options_;
  ThreadPool& pool_;
  Active active_{};
  BatchFeatures features_;
  size_t columns_ = 0;  // padded B
  std::array<float, kFrequencyClasses> scales_{};
  std::vector<uint8_t> classes_;  // [active]
  Scratch<float> cosines_;        // [active, padded B], without labels' own samples; with centroids
  std::vector<OwnCosine> own_;    // [targets]
  Scratch<float> sums_;           // [active, padded B]; with weights
  Scratch<float> class_sums_;     // [pieces, kFrequencyClasses, padded B]
  std::vector<PairLanes> lanes_;  // [threads]
};

}  // namespace modelet::shard
