// What the verbs for a pool share: how they reach the scheduler, and their options.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/control/control.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/client/pool_client.h"

namespace modelet::cli {

// Each verb has one object, which lives as long as the callback of the verb.
struct PoolOptions {
  ExperimentArguments experiment;
  std::string scheduler, key, scheduler_key, name, node, out, resume;
  std::vector<std::string> peers = {};
  uint32_t nodes = 0, steps = 50;
  int32_t priority = 0;
  uint64_t run = 0;
  double patience = kPatienceSeconds;
  bool json = false, pending = false, wait = false, watch = false, follow = false, undo = false,
       insecure = false;

  comm::control::SchedulerAddress address() const;
};

// Adds a verb with the options that all verbs for a pool have.
CLI::App& add_verb(CLI::App& app, const std::string& name, const std::string& description,
                   const std::string& examples, const std::shared_ptr<PoolOptions>& options,
                   void (*body)(const PoolOptions&));

// add_run() adds RUN, add_patience() adds --patience-seconds.
void add_run(CLI::App& verb, PoolOptions& options);
void add_patience(CLI::App& verb, PoolOptions& options);

}  // namespace modelet::cli
