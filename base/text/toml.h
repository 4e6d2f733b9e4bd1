// TOML from outside. Only .cc files include it: it pulls in the whole TOML library.
#pragma once

#include <toml++/toml.h>

#include <string_view>

namespace modelet {

// As toml::parse, whose errors it throws. It also refuses, before anything is parsed, lists, tables and dotted
// keys in one another beyond a depth that no file of ours has: the library works through them by recursion.
toml::table parse_toml(std::string_view text);

}  // namespace modelet
