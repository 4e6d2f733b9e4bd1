// Puts what an agent tells its owner (OwnerService::status) into words.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace modelet::agent {

// Returns a few lines. Throws Error if a value is missing or has another type, which means that the agent
// is of another release.
std::string status_text(const nlohmann::json& status);

}  // namespace modelet::agent
