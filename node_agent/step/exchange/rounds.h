// Rounds: the tags of all operations of a replica's group, from the first of a session to the last. This is
// the one place that assigns rounds, so that no two operations of a step share one. They are listed in the
// order of their use, because the tags of a group grow.
//
// Among the peers of several replicas rounds are assigned as they are needed: RankGrid::peer_tags().
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/array/sample_range.h"
#include "base/experiment/experiment.h"

namespace modelet::agent {

inline constexpr uint16_t kMeasureRounds = 32;        // CodecChoice::measure()
inline constexpr uint16_t kLabelRounds = 1001;        // complete_labels()
inline constexpr uint16_t kEvaluationRounds = 60000;  // Evaluator: one a hidden layer, and one, of each batch

// The first round of each operation.
enum Round : uint16_t {
  // Before the first step of a session.
  kMeasureRound = 0,

  // In a step.
  kForwardRound = kMeasureRound + kMeasureRounds,  // hidden layers upwards, a micro-batch each
  kOutputRound = kForwardRound + kMaxHiddenLayers * kMaxMicroBatches,  // a micro-batch each
  kBackwardRound = kOutputRound + kMaxMicroBatches,                    // hidden layers downwards
  kClipRound = kBackwardRound + kMaxHiddenLayers,

  // After a step, under its number. What ends a run comes after the last step's own operations, under the
  // number of the step that would follow.
  kTimesRound,
  kCheckpointRound,
  kLabelRound,
  kEvaluationRound = kLabelRound + kLabelRounds,
  kBestRound = kEvaluationRound + kEvaluationRounds,
  kFinishRound,
};
static_assert(kFinishRound < std::numeric_limits<uint16_t>::max());

}  // namespace modelet::agent
