// What simulate and simulate_training have in common: their command line, and the loops over histories.
#pragma once

#include <cstdint>
#include <string>

#include "tests/simulation/workload.h"

namespace modelet::simulation {

struct Simulation {
  std::string description;
  WorkloadFactory workload;
  uint64_t seeds = 1000;  // histories, if the user does not say how many
  uint64_t kinds = 2;     // of small runs, each of which the enumerations play
};

// Returns the exit status.
int play_as_asked(int argc, char** argv, const Simulation& simulation);

}  // namespace modelet::simulation
