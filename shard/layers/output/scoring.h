// How the logits of an output modelet become the scores that labels are ranked by. Training changes nothing here,
// and nothing here changes training.
//
//   prior   a rare label's neuron sees few steps, and in those it is a label far more often than over all
//           samples: sampled negatives raise its logits by minus the logarithm of its chance to be in the
//           active set (Menon et al., "Long-tail learning via logit adjustment", ICLR 2021, shift logits by
//           priors likewise). sampling.prior takes a share of that back
//   trust   what was learned of few samples is too sure of itself: hidden layers know these samples by heart.
//           Logits are pulled to kDoubtful, by a temperature as in Guo et al., "On calibration of modern neural
//           networks" (ICML 2017), but one that depends on how often a label was seen (model.rare_trust)
//
// so that score = kDoubtful + trust * (logit + prior - kDoubtful). Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {

// [neurons] log of the chance to be in the active set of a training step, because the batch has the label or
// because it is drawn, by the modelet's label counts. The batch is taken as if drawn without repetition from
// all training samples. Neurons that a step retrieves are not counted.
std::vector<float> log_activity(const Modelet& modelet, const Experiment::Sampling& sampling,
                                const Experiment::Train& train, const DataShape& shape);

// The logit of 8 %: about that of the labels between which it is decided which are shown and which are not.
inline constexpr float kDoubtful = -2.5f;
inline constexpr uint32_t kOftenSeen = 100;  // samples from which on a label is trusted wholly

// The share of the distance from kDoubtful that is left to a label's logits. `of_one`: with one training sample.
float trust(uint32_t samples, float of_one);

// By the modelet's label counts; empty where the experiment scores labels by their logits.
Scoring make_scoring(const Modelet& modelet, const Experiment& experiment, const DataShape& shape);

}  // namespace modelet::shard
