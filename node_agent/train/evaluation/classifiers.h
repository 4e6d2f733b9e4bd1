// The linear classifiers of a run's labels (model.classifiers; shard/layers/scoring/classifiers.h), over a group. The
// network scores training samples as in an evaluation, but only for labels that have training samples. Each rank keeps
// the proposals for its own labels that are wrong, and fits the classifiers of its output modelets. One thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/experiment/experiment.h"
#include "comm/wire/tag.h"
#include "node_agent/train/evaluation/evaluator.h"
#include "shard/data/store/dataset.h"
#include "shard/layers/network.h"

namespace modelet::agent {

// Of how many of the training rows fit_classifiers() asks what the network takes them for.
size_t classifier_rows(size_t rows);

// Replaces the classifiers of all output modelets of `network`. `rows`: the training rows of `data`, ascending.
// Every rank of the evaluator's group calls it after the same step. Uses kClassifierRounds from tag.round on (rounds.h).
// Throws Evaluator::Stopped, and leaves the network without classifiers or with some: who keeps it clears
// them first.
void fit_classifiers(shard::Network& network, Evaluator& evaluator, const shard::Dataset& data,
                     std::span<const uint32_t> rows, comm::Tag tag, const Evaluator::Progress& progress = {});

}  // namespace modelet::agent
