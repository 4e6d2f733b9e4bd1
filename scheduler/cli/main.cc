// modelet: the command line. Verbs over the libraries; exit codes are those of base/error.h.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "base/error.h"
#include "base/log.h"
#include "base/version.h"
#include "scheduler/cli/data_verbs.h"
#include "scheduler/cli/model_verbs.h"
#include "scheduler/cli/pool_verbs.h"
#include "scheduler/cli/train_verb.h"
#include "shard/kernels/kernels.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Modelet: trains very wide neural networks on idle, ordinary CPU machines.", "modelet"};
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 failed while running, 2 bad arguments or experiment file, 130 interrupted (checkpoint "
      "written).\n'modelet VERB --help' tells more.");
  modelet::cli::add_train_verb(app);
  modelet::cli::add_model_verbs(app);
  modelet::cli::add_data_verbs(app);
  modelet::cli::add_pool_verbs(app);
  app.add_subcommand("version", "Print the version and the instruction set in use")->callback([] {
    std::cout << "modelet " << modelet::kVersion << " (" << modelet::shard::kernels::instruction_set() << ")\n";
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(modelet::ExitCode::kUsage);
  }
  return static_cast<int>(modelet::ExitCode::kDone);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    modelet::start_logging("modelet");
    return run(argc, argv);
  } catch (const modelet::Error& error) {
    std::cerr << "modelet: " << error.what() << '\n';
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    std::cerr << "modelet: " << error.what() << '\n';
    return static_cast<int>(modelet::ExitCode::kFailed);
  }
}
