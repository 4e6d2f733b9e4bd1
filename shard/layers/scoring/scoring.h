// How the logits of an output modelet become the scores by which labels are ranked. Training uses only the
// logits, so nothing here changes training.
//
//     score = kDoubtful + trust * (logit + prior - kDoubtful)
//
//     prior   The neuron of a rare label takes part in few steps, and in these it is a label far more often
//             than over all samples. So sampling negatives raises its logits by minus the logarithm of its
//             chance to be in the active set. sampling.prior takes a share of that back. (Menon et al.,
//             "Long-tail learning via logit adjustment", ICLR 2021, shift logits by priors in a similar way.)
//     trust   What was learned from few samples is too sure of itself, because hidden layers know these
//             samples by heart. So logits are pulled towards kDoubtful. This is a temperature, as in Guo et
//             al., "On calibration of modern neural networks" (ICML 2017), that depends on how often a label
//             was seen (model.rare_trust).
//
// Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {

// [neurons] logarithm of a neuron's chance to be in the active set of a training step, because the batch has
// its label or because it is drawn. Computed from the modelet's label counts, as if the batch were drawn
// without repetition from all training samples. Neurons that a step retrieves are not counted.
std::vector<float> log_activity(const Modelet& modelet, const Experiment::Sampling& sampling,
                                const Experiment::Train& train, const DataShape& shape);

// The logit of 8 %: about that of the labels for which it is hard to decide whether they are shown.
inline constexpr float kDoubtful = -2.5f;
inline constexpr uint32_t kOftenSeen = 100;  // a label with this many samples is trusted fully

// The share of their distance from kDoubtful that a label's logits keep. `of_one`: that of a label with one
// training sample.
float trust(uint32_t samples, float of_one);

// Computed from the modelet's label counts (FormatError if they are missing). Empty if the experiment uses
// logits as scores.
Scoring make_scoring(const Modelet& modelet, const Experiment& experiment, const DataShape& shape);

}  // namespace modelet::shard
