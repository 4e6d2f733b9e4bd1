#include "base/system/program.h"

#include <signal.h>
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/system/file.h"
#include "base/system/manual.h"
#include "base/system/process.h"
#include "base/text/suggest.h"
#include "base/text/toml.h"
#include "base/version.h"

namespace modelet {
namespace {

constexpr const char* kConfig = "--config";

std::string with(std::string text, char from, char to) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

// Keys that a file may contain.
std::vector<std::string> known_keys(const CLI::App& app) {
  std::vector<std::string> keys;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames())
      if (name != "help" && name != "version" && "--" + name != kConfig) keys.push_back(with(name, '-', '_'));
  return keys;
}

// The value as it would appear on the command line.
std::string argument_text(const toml::node& node, const std::string& place) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* whole = node.as_integer()) return std::to_string(whole->get());
  if (const auto* real = node.as_floating_point()) return std::to_string(real->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  throw UsageError(place + " must be a text, a number, true, false, or a list of such");
}

// The values of a list, for options that may be repeated.
std::vector<std::string> argument_texts(const toml::node& node, const std::string& place) {
  const auto* list = node.as_array();
  if (list == nullptr) return {argument_text(node, place)};
  std::vector<std::string> texts;
  for (const toml::node& value : *list) texts.push_back(argument_text(value, place));
  return texts;
}

// For each option that `verb` does not know: the one that may be meant.
void explain_extras(const CLI::App& app, const CLI::App& verb) {
  std::vector<std::string> known;
  for (const CLI::Option* option : verb.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  for (const std::string& extra : app.remaining(true))
    if (const std::string name = extra.substr(0, extra.find('=')); name.starts_with("--"))
      std::cerr << name << suggestion(name, known) << '\n';
}

// The options in `message` whose value may come from the environment, with the variable. CLI11 reads the variables of
// all verbs, whichever is given.
void find_variables(const CLI::App& app, const std::string& message,
                    std::map<std::string, std::string>& found) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string &variable = option->get_envname(), name = option->get_name();
    if (!variable.empty() && std::getenv(variable.c_str()) != nullptr &&
        message.find(name) != std::string::npos)
      found[name] = variable;
  }
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    find_variables(*verb, message, found);
}

void apply_file(CLI::App& app, const std::string& path) {
  constexpr size_t kMaxFileBytes = size_t{1} << 20;
  const toml::table table = parse_toml_file(read_text_file(path, kMaxFileBytes), path,
                                            "a file of options is TOML in UTF-8: key = value");
  const std::vector<std::string> known = known_keys(app);
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const std::string place = path + ":" + std::to_string(key.source().begin.line) + ": '" + name + "'";
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw UsageError(place + " is not a known key" + suggestion(name, known));
    CLI::Option* option = app.get_option("--" + with(name, '_', '-'));
    if (option->count() > 0) continue;  // the command line overrides the file
    try {
      option->add_result(argument_texts(node, place));
      option->run_callback();
    } catch (const CLI::Error& error) {
      throw UsageError(place + ": " + error.what());
    }
  }
}

}  // namespace

int exit_code_of(const std::string& program, const std::function<int()>& body) {
  const auto failed = [&](const std::string& what, ExitCode code) {
    std::cerr << program << ": " << what << '\n';
    return static_cast<int>(code);
  };
  ::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit of its size (ulimit -f) is an error like a full disk
  try {
    const int code = body();
    if (!std::cout.flush()) throw Error(errno_text("standard output"));
    return code;
  } catch (const Error& error) {
    return failed(error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return failed(out_of_memory_text(), ExitCode::kFailed);
  } catch (const std::system_error& error) {
    const bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    return failed(no_thread
                      ? "a thread cannot be started: raise the limit of this user's threads (ulimit -u, "
                        "TasksMax of a systemd unit, the container's limit of processes), or take fewer "
                        "(--threads, --cores, train.threads)"
                      : error.what(),
                  ExitCode::kFailed);
  } catch (const std::exception& error) {
    return failed(error.what(), ExitCode::kFailed);
  }
}

int exit_code_of(const CLI::App& app, const CLI::ParseError& error) {
  if (app.exit(error) == 0) return static_cast<int>(ExitCode::kDone);
  const CLI::App* verb = &app;
  while (!verb->get_subcommands().empty()) verb = verb->get_subcommands().front();
  explain_extras(
      app, *verb);  // whatever the error is: the value after a misspelt option may have become an argument
  std::map<std::string, std::string> variables;
  find_variables(app, error.what(), variables);
  for (const auto& [option, variable] : variables)
    std::cerr << option << " may come from the environment variable " << variable
              << ": correct it, or unset it\n";
  return static_cast<int>(ExitCode::kUsage);
}

int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
  std::string config;
  app.set_version_flag("--version", fmt::format("{} {}", app.get_name(), kVersion));
  app.add_option(kConfig, config, "TOML file with these options as keys ('_' for '-')")
      ->check(CLI::ExistingFile);
  return exit_code_of(app.get_name(), [&] {
    if (const auto text = manual_text(app, argc, argv)) {
      std::cout << *text;
      return static_cast<int>(ExitCode::kDone);
    }
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return exit_code_of(app, error);
    }
    if (!config.empty()) apply_file(app, config);
    body();
    return static_cast<int>(ExitCode::kDone);
  });
}

CLI::Validator number_between(double least, double most) {
  const auto fits = [least, most](const std::string& text) {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return std::string();
    return fmt::format("Value {} not in range {:g} to {:g}", text, least, most);
  };
  return {fits, fmt::format("FLOAT in [{:g} - {:g}]", least, most)};
}

}  // namespace modelet
