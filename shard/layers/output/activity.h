// How likely a neuron of an output modelet is in the active set of a training step: because the batch has its
// label, or because it is drawn. A rare label's neuron sees few steps, and in those it is a label far more
// often than over all samples: sampled negatives raise its logits by minus the logarithm of this chance
// (Menon et al., "Long-tail learning via logit adjustment", ICLR 2021, shift logits by priors likewise).
// sampling.prior takes a share of that back when labels are scored. Neurons that a step retrieves are not
// counted. A pure function.
#pragma once

#include <vector>

#include "base/experiment/experiment.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {

// [neurons] log of the chance, by the modelet's label counts. The batch is taken as if drawn without
// repetition from all training samples.
std::vector<float> log_activity(const Modelet& modelet, const Experiment::Sampling& sampling,
                                const Experiment::Train& train, const DataShape& shape);

}  // namespace modelet::shard
