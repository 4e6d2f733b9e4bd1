// Towers: networks of their own for blocks of labels. They exchange nothing while they train, so each is a task that
// any node can do at any time; their best labels are merged by score. Plain functions; any thread.
//
// A model has model.divisions divisions of its labels into model.towers towers. Task t trains tower t % towers of
// division t / towers. The tasks follow from the experiment and the data alone, never from the nodes.
#pragma once

#include <cstdint>

#include "base/experiment/experiment.h"

namespace modelet {

inline constexpr uint32_t kMostTowers = 1024;  // of a division
inline constexpr uint32_t kAutoTowers = 0;     // model.towers of who leaves their number to the recipe; nobody trains it

// 1: one network for all labels, and no task.
constexpr uint32_t tower_tasks(const Experiment::Model& model) {
  return model.towers == 1 ? 1 : model.towers * model.divisions;
}

// The experiment of a single tower: an ordinary one of one network.
Experiment tower_experiment(const Experiment& experiment);

// The shape of a tower's data: the same samples, of whose labels `labels` are the tower's. `entries`: how often these
// occur in the training data.
DataShape tower_shape(const DataShape& shape, uint64_t labels, uint64_t entries);

}  // namespace modelet
