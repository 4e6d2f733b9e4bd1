// Which keys an experiment file sets. The experiment that follows is read elsewhere
// (base/experiment/experiment.h). Any thread.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace modelet {

// The keys that the text and the overrides set, such as "train.epochs", whatever their values are. Throws
// UsageError as parse_experiment() does, except for mistakes that involve more than one key.
std::set<std::string> given_keys(std::string_view toml, const std::filesystem::path& origin,
                                 const std::vector<std::string>& overrides = {});

// The same keys with their values, as toml_text() writes them: "1" whether the text says 1 or 1.0.
std::map<std::string, std::string> given_values(std::string_view toml, const std::filesystem::path& origin,
                                                const std::vector<std::string>& overrides = {});

}  // namespace modelet
