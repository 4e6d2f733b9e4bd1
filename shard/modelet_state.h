// A modelet's state as the arrays of its checkpoint file (docs/checkpoint_format.md), and back.
#pragma once

#include "shard/checkpoint.h"
#include "shard/modelet.h"

namespace modelet::shard {

// Writes weights, bias, optimiser state, hash codes (also those of a re-hash under way, whose work must be
// done).
CheckpointEntry save_modelet(Modelet& modelet, const CheckpointWriter& writer);

// Fills a modelet of the same cut; one for inference takes only weights, bias and tables. Tables are built
// from the weights if the checkpoint has none. FormatError if arrays are missing or do not fit.
void restore_modelet(Modelet& modelet, const Checkpoint& checkpoint);

}  // namespace modelet::shard
