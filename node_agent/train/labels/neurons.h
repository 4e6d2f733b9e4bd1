// Neurons of some labels: a network with the hidden layers of a trained one and an output layer for these labels alone, which may
// be new. Only its output layer is fitted. One thread, parallel inside.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

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

// The same of labels [labels] that the model has, as they are there. The first `given` samples are new to it, and are added to the
// direct path.
std::unique_ptr<shard::Network> neurons_of_labels(const shard::Checkpoint& checkpoint, shard::Network& model,
                                                  std::vector<uint32_t> labels, const shard::Dataset& samples, size_t given);

// Fits the rows of the output layer to these rows of `samples`, of which one may occur several times, by the optimiser of the experiment. With a sigmoid, samples without labels are negatives of
// all. With a softmax, labels compete, so the network has all labels of the model, and samples have theirs.
void fit_rows(shard::Network& network, const shard::Dataset& samples, std::vector<uint32_t> rows, const LabelProgress& progress);
// Fits the labels' linear classifiers (model.classifiers).
void fit_classifiers_of(shard::Network& network, const shard::Dataset& samples, const LabelProgress& progress);

// Fills the output layer of `network`, whose labels are all in `parts`; the first that has a label counts.
void take_labels(shard::Network& network, std::span<shard::Network* const> parts);
// Fills `whole`, whose hidden layers are those of the checkpoint, as well.
void join_labels(shard::Network& whole, std::span<shard::Network* const> parts, const shard::Checkpoint& checkpoint);

}  // namespace modelet::agent
