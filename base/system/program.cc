#include "base/system/program.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <string>
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

void apply_file(CLI::App& app, const std::string& path) {
  constexpr size_t kMaxFileBytes = size_t{1} << 20;
  toml::table table;
  try {
    table = parse_toml(read_text_file(path, kMaxFileBytes));
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
  try {
    const int code = body();
    if (!std::cout.flush()) throw Error(errno_text("standard output"));
    return code;
  } catch (const Error& error) {
    return failed(error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return failed(out_of_memory_text(), ExitCode::kFailed);
  } catch (const std::exception& error) {
    return failed(error.what(), ExitCode::kFailed);
  }
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
      return static_cast<int>(app.exit(error) == 0 ? ExitCode::kDone : ExitCode::kUsage);
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
