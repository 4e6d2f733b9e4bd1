// Linear classifiers of labels, beside the network (model.classifiers). Each label of an output modelet gets a
// linear classifier on the features of its pairs. It is fitted after training, before the model is evaluated or
// kept, on the label's own training samples and on *hard negatives*: samples without the label for which the
// network scores it high. So it learns exactly what the network gets wrong. Hidden layers share their neurons
// among all labels; a classifier weighs each feature for one label alone, which is the strength of label trees
// over linear classifiers (Prabhu et al., "Parabel", WWW 2018). Training on what another model proposes is that of
// Chang et al., "Taming pretrained transformers for extreme multi-label text classification" (KDD 2020).
//
// For a label with score s by the network, a sample x is scored
//
//   s + model.classifiers * margin,   margin = w . x / |x| + b - kDoubt
//
// where w and b minimise |w|^2 / 2 + b^2 / 2 + kCost * sum of max(0, 1 - y * margin)^2 over the label's samples
// (y = 1) and hard negatives (y = -1). kDoubt is where a label begins that has seen no negatives: without
// it, labels that the network never proposes in training would gain on those that it does.
//
// If a model goes on with other samples, what it has learned of the earlier ones is in their classifiers
// (keep_classifiers). The fit then begins with these: |w - w'|^2 / 2 + (b - b')^2 / 2 takes the place of the first
// two terms, so a classifier changes only as far as the new samples demand.
//
// Where labels are items that samples often have already (model.own_weight > 0), as in sessions, labels get *votes* in
// place of fitted weights: each sample of the label votes for it with its features,
//
//   margin = sum over f of x_f / |x| * (sum of f over the label's samples) / (sum of f over all samples + 1) ^ kPopular - kDoubt
//
// the more, the less popular the feature is. That is what session neighbours say (Jannach and Ludewig, "When recurrent
// neural networks meet the neighborhood for session-based recommendation", RecSys 2017), if each neighbour counts by the
// items that it shares. Of other samples later on, the votes are added.
//
// Training does not use the classifiers. They are a function of the network and of the data, of a modelet's own
// labels alone, so nothing is exchanged for them but the network's proposals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/parallel/thread_pool.h"
#include "shard/data/pairs/row_lists.h"
#include "shard/data/store/dataset.h"
#include "shard/layers/scoring/scoring.h"

namespace modelet::shard {

// A row that the network scores high for a neuron, counted from the modelet's first, whose label it lacks.
struct HardNegative {
  uint32_t neuron, row;
};

// The labels of the layer as if there were no classifiers.
void clear_classifiers(const Scoring& scoring);

// Whether any classifiers were ever fitted. At first they are zero, and a model is scored without them.
bool has_fitted_classifiers(const Scoring& scoring);

// From now on, fits begin with the classifiers that the modelets have. The scoring is still that with which they were
// fitted. Does nothing if there are no classifiers, or they were not fitted yet.
void keep_classifiers(const Scoring& scoring);

// What each thread of a pool needs to fit classifiers. It takes memory for every feature, so one object serves all
// modelets. For one thread at a time.
class ClassifierSolvers {
 public:
  // Refers to its arguments.
  ClassifierSolvers(const Dataset& data, ThreadPool& pool);
  ClassifierSolvers(const ClassifierSolvers&) = delete;
  ClassifierSolvers& operator=(const ClassifierSolvers&) = delete;
  ~ClassifierSolvers();

 private:
  friend class ClassifierFit;
  class Solver;
  Solver& of_this_thread();

  const Dataset& data_;
  ThreadPool& pool_;
  std::vector<std::unique_ptr<Solver>> solvers_;  // [threads]
};

// [features] how much the votes of each feature count: 1 / (sum of its absolute values over these rows + 1) ^ kPopular.
inline constexpr float kPopular = 0.6f;
std::vector<float> vote_weights(const Dataset& data, std::span<const uint32_t> rows);

// Fits the classifiers of one modelet, some of its neurons at a time. Refers to its arguments. For one thread,
// parallel inside. The result depends neither on the order of the negatives nor on threads.
class ClassifierFit {
 public:
  // Of the modelet with index `modelet`. `rows`: the training rows of `data`, ascending. Scoring::set_counts() comes
  // before fit(), which divides weights by the factors of scores.
  ClassifierFit(const Scoring& scoring, size_t modelet, const Dataset& data, std::span<const uint32_t> rows,
                std::span<const HardNegative> negatives);

  // Replaces the classifiers of the neurons [begin, end), counted from the modelet's first. `solvers` are those of the
  // same data. A label with more than kMostPositives samples is fitted on kMostPositives, at equal distances.
  static constexpr size_t kMostPositives = 32768;
  void fit(size_t begin, size_t end, ClassifierSolvers& solvers);
  // The same with votes, whose weights are those of vote_weights().
  void vote(size_t begin, size_t end, std::span<const float> weights, ClassifierSolvers& solvers);

 private:
  // Of a neuron; `find` makes a solver that has begun find the weights.
  template <class Find>
  void for_each_neuron(size_t begin, size_t end, ClassifierSolvers& solvers, const Find& find);

  const Scoring& scoring_;
  size_t modelet_;
  RowLists positives_, negatives_;
};

}  // namespace modelet::shard
