#include "scheduler/cli/verbs/keygen.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "comm/security/keys.h"

namespace modelet::cli {
namespace {

struct Options {
  std::string file;
  bool force = false;
};

void keygen(const Options& options) {
  const comm::KeyPair pair = comm::make_key_pair();
  comm::write_key_file(options.file, pair, options.force);
  std::cout << pair.public_key << std::endl;
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
      "  echo \"user $(modelet keygen ~/.modelet.key) alice\" >> allowed");
  verb.add_option("file", options->file, "key file to write")->required();
  verb.add_flag("--force", options->force, "replace a key file that exists; its key is lost");
  verb.callback([options] { keygen(*options); });
}

}  // namespace modelet::cli
