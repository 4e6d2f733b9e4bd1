// A program's manual page and its completions for shells, made from the table of its options: they know every
// verb and option that the program has, and no other.
#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace modelet {

// What `PROGRAM man` or `PROGRAM completion SHELL` (bash, zsh, fish) prints; nothing if the arguments ask for
// neither. Not verbs of `app`, so that the help of a program without verbs has none. UsageError for another
// shell. `app` must have all its verbs and options.
std::optional<std::string> manual_text(const CLI::App& app, int argc, char** argv);

}  // namespace modelet
