// Modelet: weights, bias, optimiser state and (output layer, LSH modes) hash tables of one neuron range of
// one layer. The unit that is placed on a node, moved, and saved.
//
// Layout of the parameters:
//   input    [features + 1, neurons]: a row per feature; the last row is the bias, the weights of a feature
//   that is always 1 hidden   [neurons, inputs] + bias output   [neurons, inputs] + bias
//
// A Modelet is used by one training step at a time; see Parameters for what may run in parallel.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/cut.h"
#include "hashing/index.h"
#include "shard/parameters.h"
#include "shard/preview_index.h"

namespace modelet::shard {

// What finds neurons of an output modelet by the activations: previews or hash tables, one of the two.
struct Retrieval {
  std::optional<PreviewIndex> preview;
  std::optional<hashing::LshIndex> tables;
  std::vector<float> query_mean;  // [inputs] running mean of the activations; queries are centred by it
  std::vector<uint8_t> changed;   // tables: [neurons] 1: updated since the last re-hash began
  // Rows with the largest mean logit, best first. Centring takes out of the hash what all queries share, so
  // that it can tell them apart; but that shared part decides which rows are large for nearly every query.
  // These few rows are candidates of every query.
  std::vector<uint32_t> common;
  bool rehash_running = false;  // tables: begin_rehash() was called, finish_rehash() not yet
};

class Modelet {
 public:
  // Parameters of a modelet, zero. `trainable`: with optimiser state. For the input layer also those of a run
  // of several modelets with adjacent columns.
  static Parameters make_parameters(const ModeletSpec& spec, const Experiment& experiment, bool trainable);

  Modelet(const ModeletSpec& spec, const Experiment& experiment, bool trainable)
      : Modelet(spec, experiment, make_parameters(spec, experiment, trainable)) {}
  Modelet(const ModeletSpec& spec, const Experiment& experiment, Parameters parameters);

  // Random initial weights: a function of (seed, layer, row), the same wherever the modelet is placed. Output
  // neurons start with `output_bias`.
  void initialise(float output_bias);

  const ModeletSpec& spec() const { return spec_; }
  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  // Chooses the common rows anew, from the present weights and the mean query. Only with retrieval.
  void choose_common();

  // nullptr if the modelet's neurons are not retrieved.
  Retrieval* retrieval() { return retrieval_ ? &*retrieval_ : nullptr; }
  const Retrieval* retrieval() const { return retrieval_ ? &*retrieval_ : nullptr; }

  // [neurons] how many train samples have each label of an output modelet. Empty if not known.
  std::vector<uint32_t>& label_counts() { return label_counts_; }
  const std::vector<uint32_t>& label_counts() const { return label_counts_; }

  size_t memory_bytes() const;

 private:
  ModeletSpec spec_;
  uint64_t seed_;
  Parameters parameters_;
  size_t common_;  // how many rows are common
  std::optional<Retrieval> retrieval_;
  std::vector<uint32_t> label_counts_;
};

}  // namespace modelet::shard
