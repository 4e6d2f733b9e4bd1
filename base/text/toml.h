// TOML from outside. Only .cc files include it: it pulls in the whole TOML library.
#pragma once

#include <toml++/toml.h>

#include <string>
#include <string_view>

namespace modelet {

// As toml::parse, whose errors it throws. It also refuses, before anything is parsed, lists, tables and dotted
// keys in one another beyond a depth that no file of ours has: the library works through them by recursion.
toml::table parse_toml(std::string_view text);

// The same for the text of a file that people write. Its errors are UsageErrors with `path`, line, column
// and what was `wanted`, since people may write JSON, texts without quotes, or True.
toml::table parse_toml_file(std::string_view text, const std::string& path, const std::string& wanted);

}  // namespace modelet
