// What a trained model gets wrong on labelled samples. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shard/data/store/dataset.h"
#include "shard/inference/model.h"

namespace modelet::cli {

struct JudgedLabel {
  uint32_t label = 0;
  std::string name;      // empty: labels have no names
  double score = 0;      // of a prediction
  bool right = false;    // a prediction that is a label of the sample
  uint64_t samples = 0;  // of a hard label: how many have it
  double recall = 0;     // of a hard label: in which share of them it is among the best answers
};

struct JudgedSample {
  uint64_t sample = 0;  // its place in the data, from 0
  std::vector<JudgedLabel> truth, predicted;
};

struct Judgement {
  size_t depth = 0;                  // answers to a sample that count
  uint64_t samples = 0;              // that were judged
  uint64_t wrong_samples = 0;        // whose best answer is none of their labels
  uint64_t fewest_samples = 0;       // that a label must have to be among the hardest
  std::vector<JudgedLabel> hardest;  // the hardest first
  std::vector<JudgedSample> wrong;   // some of those whose best answer is wrong
  std::vector<JudgedSample> first;   // the first samples with several labels, right or wrong
};

// Scores at most a few thousand samples, evenly chosen from `data`, against all labels. `examples`: at most so many
// samples in `wrong` and in `first`.
Judgement judge(shard::Model& model, const shard::Dataset& data, size_t examples);

}  // namespace modelet::cli
