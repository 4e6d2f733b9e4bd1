// What programs share: ranges of options; and the daemons: options from the command line and from a TOML
// file, and errors as exit codes. A key of the file is the name of an option with '_' for '-':
// `dead_after_seconds = 5` is
// `--dead-after-seconds 5`. So each option is declared once. The command line overrides the file.
#pragma once

#include <functional>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace modelet {

// Adds --version and --config FILE to `app`, parses the arguments and then the file, and runs `body`. Errors
// are printed to standard error; returns the program's exit code. An unknown key names file, line and the
// nearest known key.
int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& body);

// For ->check() of an option that is a number with a fraction: CLI::Range lets "nan" through.
CLI::Validator number_between(double least, double most);

}  // namespace modelet
