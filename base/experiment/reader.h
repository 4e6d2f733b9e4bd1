// What an experiment file says beside its values (base/experiment/experiment.h). Any thread.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace modelet {

// The keys that a text and overrides give, such as "train.epochs", whatever their values are. UsageError as
// parse_experiment(), but for what involves more than one key.
std::set<std::string> given_keys(std::string_view toml, const std::filesystem::path& origin,
                                 const std::vector<std::string>& overrides = {});

}  // namespace modelet
