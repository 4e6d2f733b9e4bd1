#include "base/experiment/towers.h"

namespace modelet {

Experiment tower_experiment(const Experiment& experiment) {
  Experiment tower = experiment;
  tower.model.towers = tower.model.divisions = 1;
  return tower;
}

DataShape tower_shape(const DataShape& shape, uint64_t labels, uint64_t entries) {
  DataShape tower = shape;
  tower.all_labels = shape.labels;
  tower.labels = labels;
  tower.test_rows = 0;
  tower.labels_per_row =
      shape.train_rows == 0 ? 0 : static_cast<double>(entries) / static_cast<double>(shape.train_rows);
  return tower;
}

}  // namespace modelet
