// The OpenAPI 3 description of what `modelet serve` answers (scheduler/cli/serve/service.h).
#pragma once

#include <string>

#include "scheduler/cli/serve/request.h"

namespace modelet::cli {

// Returns JSON. `token`: whether requests must bring a token. `change_labels`: whether there are LabelRoutes.
std::string openapi_text(const RequestLimits& limits, bool token, bool change_labels, bool update);

}  // namespace modelet::cli
