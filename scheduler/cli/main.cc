// The program `modelet`: a command line of verbs over the libraries. Exit codes are those of base/error.h.
#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/system/log.h"
#include "base/system/manual.h"
#include "base/system/program.h"
#include "base/text/suggest.h"
#include "base/version.h"
#include "scheduler/cli/pool/pool.h"
#include "scheduler/cli/serve/serve.h"
#include "scheduler/cli/verbs/bench.h"
#include "scheduler/cli/verbs/data.h"
#include "scheduler/cli/verbs/doctor.h"
#include "scheduler/cli/verbs/keygen.h"
#include "scheduler/cli/verbs/model.h"
#include "scheduler/cli/verbs/labels.h"
#include "scheduler/cli/verbs/neighbours.h"
#include "scheduler/cli/verbs/report.h"
#include "scheduler/cli/verbs/train.h"
#include "scheduler/cli/verbs/tune.h"
#include "shard/kernels/simd/instruction_set.h"

namespace {

// Without this, the error of "modelet trian" would be that a verb is missing.
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
      "\n'modelet completion bash' (or zsh, fish) prints completions for a shell, 'modelet man' a manual "
      "page; 'cmake --install' installs both.\nExit codes: 0 done, 1 failed while running, 2 bad arguments "
      "or experiment file, 130 interrupted.\n'modelet VERB --help' tells more.");
  modelet::cli::add_train_verb(app);
  modelet::cli::add_tune_verb(app);
  modelet::cli::add_model_verbs(app);
  modelet::cli::add_serve_verb(app);
  modelet::cli::add_labels_verb(app);
  modelet::cli::add_learn_verb(app);
  modelet::cli::add_neighbours_verb(app);
  modelet::cli::add_report_verb(app);
  modelet::cli::add_data_verbs(app);
  modelet::cli::add_pool_verbs(app);
  modelet::cli::add_keygen_verb(app);
  modelet::cli::add_doctor_verb(app);
  modelet::cli::add_bench_verbs(app);
  CLI::App& version = *app.add_subcommand("version", "Print the version and the instruction set in use");
  version.footer("Example:\n  modelet version");
  version.callback([] {
    std::cout << "modelet " << modelet::kVersion << " (" << modelet::shard::kernels::instruction_set()
              << ")\n";
  });
  if (const auto text = modelet::manual_text(app, argc, argv)) {
    std::cout << *text;
    return static_cast<int>(modelet::ExitCode::kDone);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    refuse_unknown_verb(app);
    app.exit(error);
    return static_cast<int>(modelet::ExitCode::kUsage);
  } catch (const CLI::ParseError& error) {
    return modelet::exit_code_of(app, error);
  }
  return static_cast<int>(modelet::ExitCode::kDone);
}

}  // namespace

int main(int argc, char** argv) {
  return modelet::exit_code_of("modelet", [&] {
    modelet::start_logging("modelet");
    modelet::shard::kernels::use_instruction_set_from_environment();
    return run(argc, argv);
  });
}
