// simulate: plays histories of a pool in simulated time, with all kinds of faults. See docs/reliability.md.
#include "tests/simulation/chain_workload.h"
#include "tests/simulation/command_line.h"

int main(int argc, char** argv) {
  using namespace modelet::simulation;
  return play_as_asked(
      argc, argv,
      {.description =
           "Plays histories of a pool to which everything happens. The first one that breaks a promise "
           "is printed.",
       .workload = [](World& world) { return std::make_unique<ChainWorkload>(world); },
       .kinds = ChainWorkload::kKinds});
}
