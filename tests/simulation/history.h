// History: one pool from its beginning until all runs have ended. The seed determines how many nodes there
// are, which runs are submitted, and which faults happen when.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "tests/simulation/faults.h"
#include "tests/simulation/mutants.h"
#include "tests/simulation/network.h"
#include "tests/simulation/workload.h"

namespace modelet::simulation {

struct HistoryOptions {
  WorkloadFactory workload = {};
  uint64_t seed = 0;
  std::set<Fault> without = {};
  Mutant mutant = Mutant::kNone;
  bool tells = false;
  // For enumerations: a small pool without drawn faults. Only the intervention below happens, the death of the
  // scheduler, or the disaster.
  bool is_small = false;
  Intervention intervention = {};
  uint64_t scheduler_point = 0;  // where the scheduler is killed; 0: nowhere
  // What else happens at that moment.
  enum class Beside : uint8_t { kNothing, kKill, kZombie, kSubmit } beside = Beside::kNothing;
  // At this time two of four nodes fail together, with or without their disks, the disk of the third is full, and
  // a file of the fourth is damaged. Time 0: nothing happens.
  struct Disaster {
    double time = 0;
    size_t first = 0, second = 0;  // the two nodes
    bool disks_are_lost = false;
    std::optional<uint32_t> file;  // the damaged one
  } disaster = {};
};

struct History {
  std::string violation;  // empty: all promises were kept
  std::string story;      // if HistoryOptions::tells
  uint64_t digest = 0;    // equal for equal options
  uint64_t messages = 0, points = 0;
  double seconds = 0;  // simulated
  uint32_t finished = 0, stopped = 0, failed = 0, recoveries = 0;
};

History play(const HistoryOptions& options);

class Pool;
// Adds a client that submits a run which the seed describes.
void submit_run(Pool& pool, uint64_t seed);

}  // namespace modelet::simulation
