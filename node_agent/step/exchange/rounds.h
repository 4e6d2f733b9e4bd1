// Rounds: the tags of all operations of a replica's group, from the first of a session to the last. Rounds
// are assigned only here, so that no two operations of a step share one. They are listed in the order of
// use, because the tags of a group must grow.
//
// Among the peers of several replicas, RankGrid::peer_tags() assigns rounds as they are needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/array/sample_range.h"
#include "base/experiment/experiment.h"

namespace modelet::agent {

inline constexpr uint16_t kLabelRounds = 1001;  // complete_labels()
// Evaluator: for each batch, one for each hidden layer and one more.
inline constexpr uint16_t kEvaluationRounds = 60000;
// RunCheckpoints::write(): three for each attempt to write a result.
inline constexpr uint16_t kSaveAttempts = 300, kRoundsOfAttempt = 3;
inline constexpr uint16_t kSaveRounds = kSaveAttempts * kRoundsOfAttempt;
// fit_classifiers(): as evaluations.
inline constexpr uint16_t kClassifierRounds = 64 * (kMaxHiddenLayers + 1) + 32;

// The first round of each operation.
enum Round : uint16_t {
  // In a step.
  kForwardRound = 0,  // for each hidden layer upwards, one for each micro-batch
  kOutputRound = kForwardRound + kMaxHiddenLayers * kMaxMicroBatches,  // one for each micro-batch
  kBackwardRound = kOutputRound + kMaxMicroBatches,                    // for each hidden layer downwards
  kClipRound = kBackwardRound + kMaxHiddenLayers,

  // After a step, with its number. The operations that end a run come after the last step's own ones, with
  // the number of the step that would follow.
  kTimesRound,
  kClassifierRound,
  kCheckpointRound = kClassifierRound + kClassifierRounds,
  kReturnRound = kCheckpointRound + kSaveRounds,
  kLabelRound,
  kEvaluationRound = kLabelRound + kLabelRounds,
  kBestRound = kEvaluationRound + kEvaluationRounds,
  kFinishRound = kBestRound + kSaveRounds,
  kLeaveRound,
};
static_assert(kLeaveRound < std::numeric_limits<uint16_t>::max());

}  // namespace modelet::agent
