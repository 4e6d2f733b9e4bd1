// Writes a modelet's state as the arrays of its checkpoint file (docs/checkpoint_format.md), and reads it.
#pragma once

#include "shard/data/store/feature_rows.h"
#include "shard/modelet/checkpoint.h"
#include "shard/modelet/checkpoint_writer.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {

// Writes everything that the modelet needs to go on: weights, biases, optimiser state, what retrieves its
// neurons, the direct path and the counts of labels. The work of a re-hash under way must be done.
CheckpointEntry save_modelet(Modelet& modelet, const CheckpointWriter& writer);

// Fills a modelet of the same partition; one for inference takes only weights, bias and tables. Tables are
// built from the weights if the checkpoint has none. FormatError if arrays are missing or do not fit.
//
// The features of an input modelet need not be those of the checkpoint (a model may go on with other samples):
// rows that the checkpoint lacks stay as they are.
void restore_modelet(Modelet& modelet, const Checkpoint& checkpoint);

// The features that the checkpoint has rows for. FormatError as above.
FeatureRows stored_feature_rows(const Checkpoint& checkpoint);

}  // namespace modelet::shard
