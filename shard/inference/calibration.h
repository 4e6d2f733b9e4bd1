// Calibration: how likely it is that a label is right, given the scores of a sample's best labels.
//
// The scores of a model that was trained with a sampled softmax order the labels of a sample well, but they
// say little about how sure the model is. In each step the model has seen only some of the wrong labels, and
// the labels of a sample share one mass. So three numbers are fitted on samples that the model was not
// trained on (beta calibration: Kull, Silva Filho, Flach, AISTATS 2017):
//
//   log odds of "right" = a ln p - b ln(1 - p) + c        a, b >= 0
//
//   softmax   p is the softmax over the sample's kNormalisedOver best scores. The others hardly add to it in a
//             trained model, and sparse scoring does not know them.
//   sigmoid   p is the sigmoid of the score
//
// With a = b = 1 and c = 0 the result is p itself. The order of a sample's labels does not change. Plain
// values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "base/experiment/choices.h"
#include "shard/data/batch/batch.h"
#include "shard/inference/evaluation.h"

namespace modelet::shard {

struct Calibration {
  double a = 1, b = 1, c = 0;
  uint64_t rows = 0;  // samples on which it was fitted
};

inline constexpr size_t kNormalisedOver = 100;

// ln p and ln(1 - p), neither below ln 1e-9.
struct LogOdds {
  double log_p = 0, log_rest = 0;
};
// Computes the odds of the first odds.size() labels. `scores` are the highest scores of a sample, best first:
// kNormalisedOver of them, or those of all labels.
void uncalibrated(Loss loss, std::span<const float> scores, std::span<LogOdds> odds);

double probability(const Calibration& calibration, const LogOdds& odds);

// A label that the model gave a sample, and whether the sample has it.
struct Outcome {
  LogOdds odds;
  bool right = false;
};
// Adds the outcomes of the kOutcomesOfSample best labels of each sample. `batch` has the samples' labels.
inline constexpr size_t kOutcomesOfSample = 10;
void add_outcomes(Loss loss, const Batch& batch, const TopK& best, std::vector<Outcome>& outcomes);

// Maximum likelihood with a weak prior at p itself, so that few or one-sided outcomes do no harm.
Calibration fit_calibration(std::span<const Outcome> outcomes);

// Expected calibration error (Guo et al., ICML 2017): outcomes in bins of equal width by their probability;
// the mean distance between the mean probability of a bin and its share of right ones, weighted by size.
double calibration_error(const Calibration& calibration, std::span<const Outcome> outcomes);

// A file in the checkpoint's folder. `key` identifies the model. read_calibration() returns nothing for a
// file that is missing, damaged or of another model. write_calibration() returns false if the file cannot be
// written, which does no harm.
inline constexpr const char* kCalibrationFile = "calibration.json";
std::optional<Calibration> read_calibration(const std::filesystem::path& file, uint64_t key);
bool write_calibration(const std::filesystem::path& file, uint64_t key, const Calibration& calibration);

}  // namespace modelet::shard
