// What an agent tells its owner (OwnerService::status), in words.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace modelet::agent {

// A few lines. Error if a value is missing or of another type: another release.
std::string status_text(const nlohmann::json& status);

}  // namespace modelet::agent
