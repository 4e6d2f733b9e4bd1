// Logging: spdlog, to standard error (standard output belongs to results and JSON Lines).
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace modelet {

// Call once at the start of a program. `name` ("agent", "scheduler", ...) is printed with each line.
// The level comes from the environment variable MODELET_LOG (trace, debug, info, warn, error; default info).
void start_logging(const std::string& name);

}  // namespace modelet
