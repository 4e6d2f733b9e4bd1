// Losses over the active set, arranged for a sharded output layer. Every node turns its own logits into
// activations and three numbers per sample. Together these give the loss, and the factor that turns
// activations into gradients (online softmax: Milakov, Gimelshein, 2018). One exchange thus carries
// normaliser and gradient.
//
//   softmax   targets share a sample's mass equally; a sample without labels has no loss and no gradient
//   sigmoid   binary cross-entropy of every active neuron, summed over neurons
//
// The loss of a batch is the mean over its samples. Stateless, thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/array/aligned.h"
#include "base/array/matrix.h"
#include "base/experiment/experiment.h"
#include "shard/data/batch/batch.h"

namespace modelet::shard {

// Rows of the local statistics [kStatistics, padded batch]: what was subtracted from the logits before the
// exponentials, the sum that the loss needs (softmax: of the exponentials), and the sum of the logits of
// labels.
enum Statistic : size_t { kReference, kSum, kTarget, kStatistics };

// The result of combining the statistics of all nodes. Arrays are [padded batch], zero in the padding.
struct BatchLoss {
  double loss = 0;  // mean over the batch
  // [ranks] gradient by logit = factor * activation - target_factor * is label
  std::vector<AlignedVector<float>> factors;
  AlignedVector<float> target_factor;

  // All zero, for a batch and a number of ranks.
  void reset(const Batch& batch, size_t ranks);
};

class LossFunction {
 public:
  virtual ~LossFunction() = default;

  // logits [rows, stride], columns = samples. Computes what to subtract before exponentials: the maximum is
  // safe, and anything near it gives the same loss and gradients.
  virtual void maximum(const float* logits, size_t rows, size_t stride, float* maximum, size_t n) const = 0;
  // Logits become activations; sum [n] gets the sums that the loss needs.
  virtual void activate(float* logits, size_t rows, size_t stride, const float* maximum, float* sum,
                        size_t n) const = 0;

  // The same as activate(), for a single logit; returns what it adds to the sum.
  virtual float activate_one(float& logit, float maximum) const = 0;

  // statistics: one matrix [kStatistics, padded batch] a rank, in rank order.
  virtual void combine(const Batch& batch, std::span<const ConstMatrix> statistics,
                       BatchLoss& result) const = 0;

  // True if activations are scaled by a factor that depends on the other nodes; then the sums over active
  // neurons and over labels must travel as two matrices.
  virtual bool normalised() const = 0;

  // The initial value of output biases. frequency: mean share of the labels that a sample has.
  virtual float initial_output_bias(double frequency) const = 0;
};

// Each loss is a file of its own; loss.cc has the table of them.
std::unique_ptr<LossFunction> make_loss(Loss kind);

}  // namespace modelet::shard
