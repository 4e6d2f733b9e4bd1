// Reads the value of one field of an experiment (experiment_fields.h) from TOML, with its limits. Internal to
// base/.
#pragma once

#include <toml++/toml.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "base/experiment_fields.h"

namespace modelet {

// What a value is read from: it names the place in messages and anchors relative paths.
struct Source {
  std::string place;  // "file:line" or "--set ..."
  std::filesystem::path folder;
};

// UsageError: it is of another type, or outside the field's range.
void read_field(const Field& field, const toml::node& node, const Source& source, Experiment& experiment);

// Untrusted text in a message: one line, limited length.
std::string shown(std::string_view text);

}  // namespace modelet
