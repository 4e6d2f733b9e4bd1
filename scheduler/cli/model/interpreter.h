// Interpreter: what the scores of a sample's best labels mean: names, and how likely each label is right.
// Immutable: any thread may use it.
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
  // `names` [labels] or empty. Without a calibration there are no probabilities.
  Interpreter(size_t labels, Loss loss, std::vector<std::string> names,
              std::optional<shard::Calibration> calibration)
      : labels_(labels), loss_(loss), names_(std::move(names)), calibration_(std::move(calibration)) {}

  bool has_names() const { return !names_.empty(); }
  bool has_probabilities() const { return calibration_.has_value(); }
  const std::optional<shard::Calibration>& calibration() const { return calibration_; }

  // How many labels have to be found so that the best k can be interpreted.
  size_t depth(size_t k) const {
    return std::min(labels_, has_probabilities() ? std::max(k, shard::kNormalisedOver) : k);
  }
  // The best k of a sample, of `best` with at least depth(k). `found` is overwritten.
  void interpret(const shard::TopK& best, size_t sample, size_t k, std::vector<ScoredLabel>& found) const;

 private:
  size_t labels_;
  Loss loss_;
  std::vector<std::string> names_;
  std::optional<shard::Calibration> calibration_;
};

}  // namespace modelet::cli
