// Texts that several parts of Core use: names, numbers of nodes, keys, texts of agents. Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "comm/security/keys.h"

namespace modelet::scheduler {

// Whether `name` fulfils kNameRule. Names become parts of paths and log lines.
bool is_name(const std::string& name);
inline constexpr const char* kNameRule = "1 to 64 letters, digits, '.', '_', '-', not beginning with '.'";

// Whether the value can be a measured quantity: finite and not negative.
bool is_measure(double value);

// A text of an agent or a user in the form in which it is kept, logged and shown (base/text/printable.h).
std::string kept_text(const std::string& text);

// Other agents of a run get the addresses and keys of all.
inline constexpr size_t kLongestAddress = 256;  // bytes
inline constexpr size_t kMostPrivateData = 64;   // names of private data of an agent
// Whether others may be told to connect to `endpoint`: it is short and printable, and can be the address of a peer.
bool is_address(const std::string& endpoint);

// An event of a run (docs/events.md) as an agent sends it, in the form in which watchers get it: its texts become as
// kept_text(). Returns nothing if it is not a JSON object that is neither large nor deep.
std::optional<std::string> kept_event(const std::string& json);
// The same for lines that a node has logged. Returns nothing if they are too many bytes.
std::optional<std::string> kept_lines(const std::string& lines);

std::string with_key(const comm::Identity& sender);
std::string nodes_text(size_t count);

}  // namespace modelet::scheduler
