// Reads the value of one field of an experiment (fields.h) from TOML, and checks its limits. Internal to
// base/.
#pragma once

#include <toml++/toml.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "base/experiment/fields.h"

namespace modelet {

// Where a value comes from. Messages name the place; relative paths start at the folder.
struct Source {
  std::string place;  // "file:line" or "--set ..."
  std::filesystem::path folder;
};

// `key`: that of the field, or with a free name. UsageError if the value has another type, or is outside the range of
// the field.
void read_field(const Field& field, std::string_view key, const toml::node& node, const Source& source,
                Experiment& experiment);

// Quotes untrusted text for a message: one line of limited length.
std::string shown(std::string_view text);

}  // namespace modelet
