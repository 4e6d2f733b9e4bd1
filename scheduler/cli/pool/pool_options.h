// What the verbs for a pool share: how the scheduler is reached, and the options of a verb.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/control/control.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/client/pool_client.h"

namespace modelet::cli {

// One object lives as long as the verb's callback.
struct PoolOptions {
  ExperimentArguments experiment;
  std::string scheduler, key, scheduler_key, name, node, out, resume;
  uint32_t nodes = 0;
  int32_t priority = 0;
  uint64_t run = 0;
  double patience = kPatienceSeconds;
  bool json = false, wait = false, watch = false, follow = false, undo = false, insecure = false;

  comm::control::SchedulerAddress address() const;
};

// A verb with the options that all have.
CLI::App& add_verb(CLI::App& app, const std::string& name, const std::string& description,
                   const std::string& examples, const std::shared_ptr<PoolOptions>& options,
                   void (*body)(const PoolOptions&));

// Adds RUN, and --patience-seconds.
void add_run(CLI::App& verb, PoolOptions& options);
void add_patience(CLI::App& verb, PoolOptions& options);

}  // namespace modelet::cli
