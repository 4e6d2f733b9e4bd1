// modelet: the command line. Verbs over the libraries; exit codes are those of base/error.h.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/suggest.h"
#include "base/version.h"
#include "scheduler/cli/bench_verbs.h"
#include "scheduler/cli/data_verbs.h"
#include "scheduler/cli/keygen_verb.h"
#include "scheduler/cli/model_verbs.h"
#include "scheduler/cli/neighbours_verb.h"
#include "scheduler/cli/pool_verbs.h"
#include "scheduler/cli/train_verb.h"
#include "scheduler/cli/tune_verb.h"
#include "shard/kernels/kernels.h"

namespace {

// Without this, "modelet trian" would hear that a verb is missing.
void refuse_unknown_verb(const CLI::App& app) {
  if (const auto given = app.get_subcommands(); !given.empty()) return refuse_unknown_verb(*given.front());
  const std::vector<std::string> rest = app.remaining();
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    verbs.push_back(verb->get_name());
  if (!rest.empty() && !verbs.empty())
    throw modelet::UsageError("'" + rest.front() + "' is not a verb of '" + app.get_name() + "'" +
                              modelet::suggestion(rest.front(), verbs));
}

int run(int argc, char** argv) {
  CLI::App app{"Modelet: trains very wide neural networks on idle, ordinary CPU machines.", "modelet"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("modelet ") + modelet::kVersion);
  app.footer(
      "First steps:\n"
      "  modelet train experiments/quickstart.toml                       on this machine, in this process\n"
      "  modelet train experiments/quickstart.toml --nodes 4             with a scheduler and four agents\n"
      "  modelet predict runs/NAME-TIME test.txt.xz --limit 3            the best labels of each sample\n"
      "  modelet submit experiments/quickstart.toml --nodes 2 --watch    on the machines of a pool\n"
      "\nExit codes: 0 done, 1 failed while running, 2 bad arguments or experiment file, 130 interrupted "
      "(checkpoint written).\n'modelet VERB --help' tells more.");
  modelet::cli::add_train_verb(app);
  modelet::cli::add_tune_verb(app);
  modelet::cli::add_model_verbs(app);
  modelet::cli::add_neighbours_verb(app);
  modelet::cli::add_data_verbs(app);
  modelet::cli::add_pool_verbs(app);
  modelet::cli::add_keygen_verb(app);
  modelet::cli::add_bench_verbs(app);
  app.add_subcommand("version", "Print the version and the instruction set in use")->callback([] {
    std::cout << "modelet " << modelet::kVersion << " (" << modelet::shard::kernels::instruction_set()
              << ")\n";
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    refuse_unknown_verb(app);
    app.exit(error);
    return static_cast<int>(modelet::ExitCode::kUsage);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(modelet::ExitCode::kUsage);
  }
  if (!std::cout.flush()) throw modelet::Error(modelet::errno_text("standard output"));
  return static_cast<int>(modelet::ExitCode::kDone);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    modelet::start_logging("modelet");
    modelet::shard::kernels::use_instruction_set_from_environment();
    return run(argc, argv);
  } catch (const modelet::Error& error) {
    std::cerr << "modelet: " << error.what() << '\n';
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    std::cerr << "modelet: " << error.what() << '\n';
    return static_cast<int>(modelet::ExitCode::kFailed);
  }
}
