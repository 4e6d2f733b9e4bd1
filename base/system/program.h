// What the programs share: ranges of options, and errors as exit codes. The daemons take their options from
// the command line and from a TOML file. A key of the file is the name of an option with '_' for '-':
// `dead_after_seconds = 5` is `--dead-after-seconds 5`. So each option is declared once. The command line
// overrides the file.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
class ParseError;
class Validator;
}  // namespace CLI

namespace modelet {

// Runs `body` and returns its exit code. Exceptions become exit codes; their text is printed to standard
// error, after the program's name.
int exit_code_of(const std::string& program, const std::function<int()>& body);

// Prints what is wrong with the arguments of `app` (or what --help asks for), the nearest known option for a misspelt
// one, and the environment variable that a wrong value comes from. Returns the exit code.
int exit_code_of(const CLI::App& app, const CLI::ParseError& error);

// Adds --version and --config FILE to `app`, parses the arguments and then the file, and runs `body`. Errors
// are printed to standard error; returns the program's exit code. The arguments may also ask for a manual
// (base/system/manual.h). The error for an unknown key names file, line and the nearest known key.
int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& body);

// For ->check() of options that are fractional numbers: CLI::Range lets "nan" through.
CLI::Validator number_between(double least, double most);

}  // namespace modelet
