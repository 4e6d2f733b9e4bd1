// Calibration: how likely it is that a label is right, given the scores of a sample's best labels.
//
// Training with a sampled softmax leaves scores that order the labels of a sample well and say little about
// how sure the model is: it has seen only some of the wrong labels in each step, and where samples have
// several labels, these share one mass. So three numbers are fitted on samples that the model was not trained
// on (beta calibration: Kull, Silva Filho, Flach, AISTATS 2017):
//
//   log odds of "right" = a ln p - b ln(1 - p) + c        a, b >= 0
//
//   softmax   p is the softmax over the sample's kNormalisedOver best scores. The others hardly add to it in a
//             trained model, and sparse scoring does not know them.
//   sigmoid   p is the sigmoid of the score
//
// a = b = 1, c = 0 is p itself. The order of a sample's labels stays. Plain values and pure functions.
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
// Of the first odds.size() of the scores, which are the highest of a sample, best first: kNormalisedOver of
// them, or those of all labels.
void uncalibrated(Loss loss, std::span<const float> scores, std::span<LogOdds> odds);

double probability(const Calibration& calibration, const LogOdds& odds);

// A label that a sample was given, and whether the sample has it.
struct Outcome {
  LogOdds odds;
  bool right = false;
};
// Those of the kOutcomesOfSample best labels of each sample, which has its labels.
inline constexpr size_t kOutcomesOfSample = 10;
void add_outcomes(Loss loss, const Batch& batch, const TopK& best, std::vector<Outcome>& outcomes);

// Maximum likelihood with a weak prior at p itself, so that few or one-sided outcomes do no harm.
Calibration fit_calibration(std::span<const Outcome> outcomes);

// Expected calibration error (Guo et al., ICML 2017): outcomes in bins of equal width by their probability;
// the mean distance between the mean probability of a bin and its share of right ones, weighted by size.
double calibration_error(const Calibration& calibration, std::span<const Outcome> outcomes);

// A file in the checkpoint's folder. `key` stands for the model; a file that is missing, damaged or of another
// model is none. A file that cannot be written is left out: false.
inline constexpr const char* kCalibrationFile = "calibration.json";
std::optional<Calibration> read_calibration(const std::filesystem::path& file, uint64_t key);
bool write_calibration(const std::filesystem::path& file, uint64_t key, const Calibration& calibration);

}  // namespace modelet::shard
