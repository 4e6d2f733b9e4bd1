// Interpreter: says what the scores of a sample's best labels mean: the names of the labels, and how likely
// each label is right. Immutable; any thread may use it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/experiment/choices.h"
#include "shard/inference/calibration.h"

namespace modelet::cli {

struct ScoredLabel {
  uint32_t label = 0;
  float score = 0;
  double probability = 0;  // of being right; 0 if the interpreter has no calibration
  std::string_view name;   // empty if the interpreter has no names
};

class Interpreter {
 public:
  // `names` has one entry for each label, or none. Without a calibration there are no probabilities.
  Interpreter(size_t labels, Loss loss, std::vector<std::string> names,
              std::optional<shard::Calibration> calibration)
      : labels_(labels), loss_(loss), names_(std::move(names)), calibration_(std::move(calibration)) {}

  bool has_names() const { return !names_.empty(); }
  bool has_probabilities() const { return calibration_.has_value(); }
  const std::optional<shard::Calibration>& calibration() const { return calibration_; }

  // How many labels have to be found to interpret the best k. Probabilities are normalised over more labels.
  size_t depth(size_t k) const {
    return std::min(labels_, has_probabilities() ? std::max(k, shard::kNormalisedOver) : k);
  }
  // Interprets the best k labels of a sample. `best` must have at least depth(k) labels for each sample. The
  // result overwrites `found`.
  void interpret(const shard::TopK& best, size_t sample, size_t k, std::vector<ScoredLabel>& found) const;

 private:
  size_t labels_;
  Loss loss_;
  std::vector<std::string> names_;
  std::optional<shard::Calibration> calibration_;
};

}  // namespace modelet::cli
