// DirectPath: the terms of the logits that bypass the hidden layers, centroids (shard/data/pairs/pairs.h) and
// the fixed weight of a sample's own items (shard/data/pairs/own_items.h), within a step of the shared output layer.
// It computes what they add to the logits of the active neurons, and trains the centroids' scales.
// (shard/layers/scoring/terms.cc has what they add when labels are scored.)
//
// What it adds needs no activations, so it is computed for the whole batch when the active set is known. For
// the labels of a sample x, x is taken out of the sums (leave-one-out): the cosine is cos(x, sums - x), and
// the scale is that of a label with one sample fewer. So the learned scales also hold for samples that were
// not trained on, and a label with a single sample teaches nothing about itself. A sample may have an item as feature
// and as label after all: the exclusion, which would hide the label's logit, does not count then.
//
// The scales are common to all ranks. For each sample and class, each rank sends the sum of activation *
// cosine over its active neurons, and the sum of the cosine over its labels. These are kScaleStatistics more
// rows of OutputLayer::statistics(). From them every rank computes the same gradient. Nothing else travels.
//
// Order of calls in a step: assign; for each range of samples add_logits and read_activations of each piece,
// then fill_statistics. Functions on different pieces may run at the same time.
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
#include "shard/data/store/label_spread.h"
#include "shard/layers/loss/loss.h"
#include "shard/layers/output/active_set.h"
#include "shard/layers/output/output_options.h"
#include "shard/layers/output/output_products.h"
#include "shard/modelet/modelet.h"
#include "shard/modelet/parameters.h"

namespace modelet::shard {

// There are few scales, and each gets a gradient from all samples. So their learning rate is this multiple of
// the weights' rate.
inline constexpr float kScaleRate = 10;

inline constexpr size_t kScaleStatistics = 2 * kFrequencyClasses;  // rows: of activations, of labels

class DirectPath {
 public:
  // `modelets` of the layer; all have a direct path.
  DirectPath(std::span<Modelet* const> modelets, const OutputOptions& options, const LabelSpread& spread,
             ThreadPool& pool);

  // The active neurons of a step, divided into pieces, and the labels among them: those of neuron a are
  // targets[offsets[a], offsets[a + 1]). All are kept by reference until the step ends. The batch is the group of
  // samples that share the neurons.
  struct Active {
    const Batch* batch;
    std::span<const ActiveNeuron> neurons;
    std::span<const ActiveRange> pieces;
    std::span<const Target> targets;
    std::span<const size_t> offsets;
  };
  void assign(const Active& active);

  // logits [count, range.columns() of padded B] of a piece += what the direct path adds.
  void add_logits(const ActiveRange& piece, SampleRange range, float* logits) const;
  // read_activations() reads the activations of piece i [count, columns of padded B]. When all pieces of a
  // range have been read, fill_statistics() writes the range's part of the statistics [kScaleStatistics,
  // padded B].
  void read_activations(size_t i, SampleRange range, const float* activations);
  void fill_statistics(SampleRange range, Matrix statistics) const;

  // scale_gradient(): the gradient with respect to the scales, from the statistics of all ranks; the rows
  // from `first` on are those of the direct path.
  using ScaleGradient = std::array<float, kVectorFloats>;
  static ScaleGradient scale_gradient(const BatchLoss& loss, std::span<const ConstMatrix> statistics,
                                      size_t first, size_t samples);
  static void update_scales(std::span<Modelet* const> modelets, ScaleGradient gradient,
                            const UpdateRule& rule);

 private:
  // The cosine of a sample and one of its labels, whose sums leave the sample out.
  struct OwnCosine {
    float cosine = 0;
    size_t frequency_class = 0;
  };

  const Pairs& pairs_of(size_t a) const { return modelets_[active_.neurons[a].modelet]->direct()->pairs; }
  void compute_cosines(const ActiveRange& piece);
  void compute_cosines(size_t first, size_t count, PairLanes& lanes);
  void add_own_items(size_t a, SampleRange range, float* logits) const;
  OwnCosine own_cosine(const Target& target, size_t lane, const PairLanes& lanes) const;

  std::vector<Modelet*> modelets_;
  const OutputOptions options_;
  const LabelSpread& spread_;
  ThreadPool& pool_;
  Active active_{};
  BatchFeatures features_;
  size_t columns_ = 0;  // padded B
  std::array<float, kFrequencyClasses> scales_{};
  std::vector<uint8_t> classes_;  // [active]
  Scratch<float> cosines_;        // [active, padded B], 0 for a label's own samples
  std::vector<OwnCosine> own_;    // [targets]
  Scratch<float> class_sums_;     // [pieces, kFrequencyClasses, padded B]
  std::vector<PairLanes> lanes_;  // [threads]
};

}  // namespace modelet::shard
