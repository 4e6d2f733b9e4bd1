// Which keys an experiment file sets; its values are read elsewhere (base/experiment/experiment.h). Any
// thread.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace modelet {

// The keys that the text and the overrides set, such as "train.epochs", whatever their values are. Throws
// UsageError as parse_experiment() does, except for mistakes that involve more than one key.
std::set<std::string> given_keys(std::string_view toml, const std::filesystem::path& origin,
                                 const std::vector<std::string>& overrides = {});

}  // namespace modelet
