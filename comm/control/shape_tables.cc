#include "comm/control/shape_tables.h"

namespace modelet::comm::control {

std::unique_ptr<ShapeT> to_table(const DataShape& shape) {
  auto table = std::make_unique<ShapeT>();
  table->features = shape.features;
  table->labels = shape.labels;
  table->train_rows = shape.train_rows;
  table->test_rows = shape.test_rows;
  table->features_per_row = shape.features_per_row;
  table->labels_per_row = shape.labels_per_row;
  table->encoder = shape.encoder;
  table->fingerprint = shape.fingerprint;
  table->occurring_features = shape.occurring_features;
  table->all_labels = shape.all_labels;
  return table;
}

DataShape shape_of(const ShapeT& table) {
  DataShape shape{.features = table.features,
                  .labels = table.labels,
                  .train_rows = table.train_rows,
                  .test_rows = table.test_rows,
                  .features_per_row = table.features_per_row,
                  .labels_per_row = table.labels_per_row,
                  .encoder = table.encoder,
                  .fingerprint = table.fingerprint};
  shape.occurring_features = table.occurring_features;
  shape.all_labels = table.all_labels;
  return shape;
}

}  // namespace modelet::comm::control
