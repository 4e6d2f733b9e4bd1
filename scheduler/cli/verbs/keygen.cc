#include "scheduler/cli/verbs/keygen.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "base/system/file.h"
#include "base/text/toml.h"
#include "comm/security/keys.h"
#include "scheduler/client/launch/enrolment.h"

namespace modelet::cli {
namespace {

struct Options {
  std::string file, allow_list, role, name;
  bool force = false;
};

void keygen(const Options& options) {
  comm::KeyPair pair;
  if (options.allow_list.empty()) {
    pair = comm::make_key_pair();
    comm::write_key_file(options.file, pair, options.force);
  } else {
    pair = enrol(options.file, options.force, options.allow_list, options.role, options.name);
  }
  std::cout << pair.public_key << std::endl;
}

// Of a key file, or of a file with nothing else, as `keygen` prints it. Only a secret must be closed to others.
std::string public_key_in(const std::string& path) {
  constexpr size_t kMostBytes = 4096;  // a key file has 200
  const std::string text = read_text_file(path, kMostBytes);
  std::istringstream words(text);
  std::string first, rest;
  if (words >> first && comm::is_key(first) && !(words >> rest)) return comm::parse_key(first, path);
  std::optional<std::string> public_key;
  try {
    const toml::table table = parse_toml(text);
    if (!table.contains("secret")) public_key = table["public"].value<std::string>();
  } catch (const toml::parse_error&) {  // its text could show the secret
  }
  return public_key ? comm::parse_key(*public_key, path + ": 'public'")
                    : comm::read_key_file(path).public_key;
}

}  // namespace

void add_keygen_verb(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App& verb = *app.add_subcommand(
      "keygen", "Make a key for a pool across machines: writes the file, prints the public key");
  verb.footer(
      "The file (TOML: public, secret) is readable by its owner alone. Each machine and each person makes a "
      "key and tells only what is printed.\n"
      "Examples:\n"
      "  modelet keygen scheduler.key\n"
      "  echo \"agent $(modelet keygen agent.key) office-17\" >> allowed      # the scheduler's "
      "--allow-list\n"
      "  modelet keygen ~/.modelet.key --allow-list allowed --role user --name alice");
  verb.add_option("file", options->file, "key file to write")->required();
  verb.add_flag("--force", options->force, "replace a key file that exists; its key is lost");
  CLI::Option* const list =
      verb.add_option("--allow-list", options->allow_list,
                      "also add the key to this list of a scheduler, which is made if there is none");
  list->needs(verb.add_option("--role", options->role, "in the list: agent, user or admin")->needs(list));
  list->needs(verb.add_option("--name", options->name, "in the list: of the machine or person")->needs(list));
  verb.callback([options] { keygen(*options); });

  const auto shown = std::make_shared<std::string>();
  CLI::App& key_verb = *app.add_subcommand("key", "Print the public key of a key file");
  key_verb.footer(
      "The secret key is never printed.\n"
      "Examples:\n"
      "  modelet key scheduler.key\n"
      "  modelet-agent --key agent.key --scheduler-key $(modelet key scheduler.pub)");
  key_verb.add_option("file", *shown, "file that 'modelet keygen' wrote, or one with the public key alone")
      ->required();
  key_verb.callback([shown] { std::cout << public_key_in(*shown) << std::endl; });
}

}  // namespace modelet::cli
