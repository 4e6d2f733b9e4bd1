// The shape of data (DataShape) in messages.
#pragma once

#include <memory>

#include "base/experiment/experiment.h"
#include "comm/control/control_generated.h"

namespace modelet::comm::control {

std::unique_ptr<ShapeT> to_table(const DataShape& shape);
DataShape shape_of(const ShapeT& table);

}  // namespace modelet::comm::control
