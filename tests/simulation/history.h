// History: one pool from its beginning until all runs have ended. A seed says how many nodes there are, which runs
// are submitted, and which faults happen when.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "tests/simulation/faults.h"
#include "tests/simulation/mutants.h"
#include "tests/simulation/network.h"

namespace modelet::simulation {

struct HistoryOptions {
  uint64_t seed = 0;
  std::set<Fault> without = {};
  Mutant mutant = Mutant::kNone;
  bool tells = false;
  // For enumerations: a small pool without drawn faults, but this one.
  bool is_small = false;
  Intervention intervention = {};
  uint64_t scheduler_point = 0;  // where the scheduler is killed; 0: nowhere
  enum class Beside : uint8_t { kNothing, kKill, kZombie, kSubmit } beside = Beside::kNothing;  // at that moment
};

struct History {
  std::string violation;  // empty: all promises were kept
  std::string story;      // if it was to be told
  uint64_t digest = 0;    // the same for the same options
  uint64_t messages = 0, points = 0;
  double seconds = 0;  // simulated
  uint32_t finished = 0, stopped = 0, failed = 0, recoveries = 0;
};

History play(const HistoryOptions& options);

class Pool;
// A client that submits a run which the seed describes.
void submit_run(Pool& pool, uint64_t seed);

}  // namespace modelet::simulation
