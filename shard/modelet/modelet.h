// Modelet: a range of neurons of one layer, with weights, biases and optimiser state. An output modelet also
// has what retrieves its neurons (lsh modes), and its part of the direct path. A modelet is the unit that is
// placed on a node, moved, and saved.
//
// Layout of the parameters:
//   input    [features + 1, neurons]: a row for each feature that occurs (shard/data/store/feature_rows.h); the
//            last row is the bias, the weights of a feature that is always 1
//   hidden   [neurons, inputs] + bias
//   output   [neurons, inputs] + bias
//
// A Modelet is used by one training step at a time; see Parameters for what may run in parallel.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/experiment/partition.h"
#include "hashing/index.h"
#include "shard/data/pairs/classifiers.h"
#include "shard/data/pairs/pairs.h"
#include "shard/data/store/feature_rows.h"
#include "shard/modelet/low_rank_index.h"
#include "shard/modelet/parameters.h"

namespace modelet::shard {

// Retrieval of the neurons of an output modelet by the activations: with either low-rank projections or hash
// tables.
struct Retrieval {
  std::optional<LowRankIndex> low_rank;
  std::optional<hashing::LshIndex> tables;
  std::vector<float> query_mean;  // [inputs] running mean of the activations; queries are centred by it
  std::vector<uint8_t> changed;   // tables: [neurons] 1: updated since the last re-hash began
  // Rows with the largest mean logit, best first. Centring removes from the hash what all queries share, so
  // that hashes tell queries apart. But the shared part decides which rows have large logits for nearly every
  // query. So these few rows are candidates of every query.
  std::vector<uint32_t> common;
  bool rehash_running = false;  // tables: begin_rehash() was called, finish_rehash() not yet
};

// The direct path from features to the labels of an output modelet. All output modelets have the same scales,
// which are trained as weights are.
struct Direct {
  Pairs pairs;
  Parameters scales;                       // [1, a vector]: of the centroids' cosines, by frequency class
  std::optional<Classifiers> classifiers;  // with model.classifiers
  Classifiers earlier;  // as they were fitted to samples that are no longer there; empty if there were none

  float scale(size_t frequency_class) const { return scales.floats().row(0)[frequency_class]; }
  size_t memory_bytes() const {
    return pairs.memory_bytes() + scales.memory_bytes() + (classifiers ? classifiers->memory_bytes() : 0) +
           earlier.memory_bytes();
  }
};

// The part of an experiment that modelets need.
struct ModeletOptions {
  Precision precision = Precision::kFp32;  // of the wide layers
  std::optional<OptimizerKind> optimizer;  // none: for inference, without its state
  uint64_t moments = 0;                    // that the rule of the replicas' mean keeps (cluster.rule)
  Experiment::Sampling sampling;
  bool direct_path = false;      // whether there is one
  uint32_t most_pairs = 0;       // of a label; 0: all
  bool classifiers = false;      // whether labels have them, beside a direct path
  uint32_t output_modelets = 1;  // that the output layer is divided into
  uint64_t seed = 0;
};
ModeletOptions modelet_options(const Experiment& experiment, bool trainable);

class Modelet {
 public:
  // Parameters of a modelet, all zero. For the input layer, `spec` may also span several modelets with
  // adjacent columns, which then share the parameters. `features`: those of the rows of an input modelet, which
  // must outlive it; null: all.
  static Parameters make_parameters(const ModeletSpec& spec, const ModeletOptions& options,
                                    const FeatureRows* features = nullptr);

  Modelet(const ModeletSpec& spec, const ModeletOptions& options, const FeatureRows* features = nullptr)
      : Modelet(spec, options, make_parameters(spec, options, features)) {}
  Modelet(const ModeletSpec& spec, const ModeletOptions& options, Parameters parameters);

  // Random initial weights: a function of (seed, layer, row), the same wherever the modelet is placed. Output
  // neurons start with the bias `output_bias`.
  void initialise(float output_bias);

  const ModeletSpec& spec() const { return spec_; }
  // The features of an input modelet's rows; empty: every feature has the row of its number.
  std::span<const uint32_t> features() const { return parameters_.numbers(); }
  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  // The moments of the replicas' mean (node_agent/replicas/mean_rule.h), in the shape of the parameters: their "weights"
  // and "biases". They are the same on all replicas.
  std::span<Parameters> moments() { return moments_; }
  // Chooses the common rows anew, from the present weights and the mean query. Only with retrieval.
  void choose_common();

  // nullptr if the modelet's neurons are not retrieved.
  Retrieval* retrieval() { return retrieval_ ? &*retrieval_ : nullptr; }
  const Retrieval* retrieval() const { return retrieval_ ? &*retrieval_ : nullptr; }

  // nullptr if the experiment has no direct path.
  Direct* direct() { return direct_ ? &*direct_ : nullptr; }
  const Direct* direct() const { return direct_ ? &*direct_ : nullptr; }

  // [neurons] number of samples in the training data with each label of an output modelet. Empty if not known.
  std::vector<uint32_t>& label_counts() { return label_counts_; }
  const std::vector<uint32_t>& label_counts() const { return label_counts_; }

  size_t memory_bytes() const;

 private:
  ModeletSpec spec_;
  uint64_t seed_;
  Parameters parameters_;
  std::vector<Parameters> moments_;
  size_t common_;  // how many rows are common
  std::optional<Retrieval> retrieval_;
  std::optional<Direct> direct_;
  std::vector<uint32_t> label_counts_;
};

}  // namespace modelet::shard
