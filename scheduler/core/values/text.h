// Texts that the parts of Core share: names, numbers of nodes, keys, texts of agents. Pure functions.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "comm/security/keys.h"

namespace modelet::scheduler {

// Names become parts of paths and log lines.
bool is_name(const std::string& name);
inline constexpr const char* kNameRule = "1 to 64 letters, digits, '.', '_', '-', not beginning with '.'";

// A quantity that somebody claims to have measured.
bool is_measure(double value);

// A text of an agent or a user, as it is kept, logged and shown (base/text/printable.h).
std::string kept_text(const std::string& text);

// An event of a run (docs/events.md) as an agent sends it: an object, neither large nor deep, with texts as
// kept_text. Nothing if it is not one.
std::optional<nlohmann::json> parse_event(const std::string& json);
std::string text_of(const nlohmann::json& event, const char* key);  // empty: there is none

std::string with_key(const comm::Identity& sender);
std::string nodes_text(size_t count);

}  // namespace modelet::scheduler
