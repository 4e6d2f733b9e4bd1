#include "scheduler/cli/pool/pool_options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "base/error.h"
#include "base/system/program.h"
#include "comm/transport/endpoint.h"

namespace modelet::cli {

namespace {

constexpr const char* kSchedulerVariable = "MODELET_SCHEDULER";
constexpr const char* kKeyVariable = "MODELET_KEY";
constexpr const char* kSchedulerKeyVariable = "MODELET_SCHEDULER_KEY";

// What a user may have forgotten who did not give these options.
std::string set_variables() {
  std::string set;
  for (const char* variable : {kSchedulerVariable, kKeyVariable, kSchedulerKeyVariable})
    if (std::getenv(variable) != nullptr)
      set += (set.empty() ? "; the environment sets " : ", ") + std::string(variable);
  return set;
}

}  // namespace

comm::control::SchedulerAddress PoolOptions::address() const {
  try {
    comm::check_endpoint(scheduler, false);
    const auto keys = comm::read_client_keys(key, scheduler_key);
    comm::require_keys(scheduler, keys.has_value(), insecure, "the scheduler's address",
                       "--key FILE and --scheduler-key KEY");
    return {scheduler, keys};
  } catch (const UsageError& error) {
    throw UsageError(error.what() + set_variables());
  }
}

CLI::App& add_verb(CLI::App& app, const std::string& name, const std::string& description,
                   const std::string& examples, const std::shared_ptr<PoolOptions>& options,
                   void (*body)(const PoolOptions&)) {
  CLI::App& verb = *app.add_subcommand(name, description);
  verb.footer("Examples:\n" + examples);
  verb.add_option("--scheduler", options->scheduler,
                  "address of the scheduler, such as tcp://192.168.1.5:5570")
      ->default_val("tcp://127.0.0.1:5570")
      ->envname(kSchedulerVariable);
  verb.add_option("--key", options->key,
                  "file of your key, made by 'modelet keygen'; for a scheduler with keys")
      ->envname(kKeyVariable);
  verb.add_option("--scheduler-key", options->scheduler_key,
                  "public key of the scheduler, as 'modelet keygen' printed it there")
      ->envname(kSchedulerKeyVariable);
  verb.add_flag("--insecure", options->insecure,
                "without keys: whatever answers at the scheduler's address is trusted with the experiment")
      ->envname("MODELET_INSECURE");
  verb.add_flag("--json", options->json, "JSON Lines on standard output");
  verb.callback([options, body] { body(*options); });
  return verb;
}

void add_run(CLI::App& verb, PoolOptions& options) {
  verb.add_option("run", options.run, "number of the run")
      ->required()
      ->check(CLI::PositiveNumber);  // otherwise -1 would become the largest number
}

void add_patience(CLI::App& verb, PoolOptions& options) {
  verb.add_option("--patience-seconds", options.patience,
                  "how long to wait for a scheduler that goes away meanwhile; the run goes on without it")
      ->capture_default_str()
      ->check(number_between(0.1, 86400.0));
}

}  // namespace modelet::cli
