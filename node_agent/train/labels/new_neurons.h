// The neurons of new labels: a network with the hidden layers of a trained one and an output layer for the new labels alone.
// Only its output layer is fitted. One thread, parallel inside.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "shard/data/store/dataset.h"
#include "shard/layers/network.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::agent {

using LabelProgress = std::function<void(std::string_view what, double share)>;

// A network for labels [model.shape().labels, samples.labels()), whose numbers are behind those of the model, known by their
// mean samples. Its hidden layers are those of the checkpoint, and so is the sampling: of as many other labels, so many are
// negatives of a step, so that logits are as sure of themselves as those of the model. `samples`: theirs, with no other labels.
std::unique_ptr<shard::Network> neurons_of_new_labels(const shard::Checkpoint& checkpoint, shard::Network& model,
                                                      const shard::Dataset& samples, const LabelProgress& progress);

// Fits the rows of the output layer by the optimiser of the experiment. With a sigmoid, samples without labels are negatives of
// all. With a softmax, labels compete, so the network has all labels of the model, and samples have theirs.
void fit_rows(shard::Network& network, const shard::Dataset& samples, const LabelProgress& progress);
// Fits the labels' linear classifiers (model.classifiers).
void fit_classifiers_of(shard::Network& network, const shard::Dataset& samples, const LabelProgress& progress);

// Fills the output layer of `network`, whose labels are all in `parts`; the first that has a label counts.
void take_labels(shard::Network& network, std::span<shard::Network* const> parts);
// Fills `whole`, whose hidden layers are those of the checkpoint, as well.
void join_labels(shard::Network& whole, std::span<shard::Network* const> parts, const shard::Checkpoint& checkpoint);

}  // namespace modelet::agent
