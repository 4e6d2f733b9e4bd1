// A program's manual page and shell completions. They are made from the program's own options, so they list
// exactly the verbs and options that it has.
#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace modelet {

// What `PROGRAM man` or `PROGRAM completion SHELL` (bash, zsh, fish) prints; nothing if the arguments ask for
// neither. `man` and `completion` are not verbs of `app`, so that the help of a program without verbs shows
// none. Another shell is a UsageError. Call this when `app` has all its verbs and options.
std::optional<std::string> manual_text(const CLI::App& app, int argc, char** argv);

}  // namespace modelet
