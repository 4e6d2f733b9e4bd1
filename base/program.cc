#include "base/program.h"

#include <spdlog/fmt/fmt.h>
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"
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

// The value as it would stand on the command line.
std::string argument_text(const toml::node& node, const std::string& place) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* whole = node.as_integer()) return std::to_string(whole->get());
  if (const auto* real = node.as_floating_point()) return std::to_string(real->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  throw UsageError(place + " must be a text, a number, true or false");
}

void apply_file(CLI::App& app, const std::string& path) {
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    throw UsageError(path + ":" + std::to_string(error.source().begin.line) + ": " +
                     std::string(error.description()));
  }
  const std::vector<std::string> known = known_keys(app);
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const std::string place = path + ":" + std::to_string(key.source().begin.line) + ": '" + name + "'";
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw UsageError(place + " is not a known key" + suggestion(name, known));
    CLI::Option* option = app.get_option("--" + with(name, '_', '-'));
    if (option->count() > 0) continue;  // the command line goes first
    try {
      option->add_result(argument_text(node, place));
      option->run_callback();
    } catch (const CLI::Error& error) {
      throw UsageError(place + ": " + error.what());
    }
  }
}

}  // namespace

int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
  std::string config;
  app.set_version_flag("--version", fmt::format("{} {}", app.get_name(), kVersion));
  app.add_option(kConfig, config, "TOML file with these options as keys ('_' for '-')")
      ->check(CLI::ExistingFile);
  try {
    app.parse(argc, argv);
    if (!config.empty()) apply_file(app, config);
    body();
    return static_cast<int>(ExitCode::kDone);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? static_cast<int>(ExitCode::kDone) : static_cast<int>(ExitCode::kUsage);
  } catch (const Error& error) {
    std::cerr << app.get_name() << ": " << error.what() << '\n';
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    std::cerr << app.get_name() << ": " << error.what() << '\n';
    return static_cast<int>(ExitCode::kFailed);
  }
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
