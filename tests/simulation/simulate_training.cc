// simulate_training: the same histories as those of simulate, but with small runs of the real trainer. See
// docs/reliability.md.
#include <signal.h>
#include <stdlib.h>

#include "base/system/log.h"
#include "tests/simulation/command_line.h"
#include "tests/simulation/trained_workload.h"

int main(int argc, char** argv) {
  using namespace modelet::simulation;
  ::setenv("MODELET_LOG", "off", 0);  // otherwise ranks would log a complaint in every history
  modelet::start_logging("simulate_training");
  ::signal(SIGXFSZ, SIG_IGN);  // writing to a full disk is an error
  TrainedRuns runs;
  return play_as_asked(
      argc, argv,
      {.description =
           "Plays histories of a pool to which everything happens, with small runs of the real trainer. "
           "The first one that breaks a promise is printed.",
       .workload = [&runs](World& world) { return std::make_unique<TrainedWorkload>(runs, world); },
       .seeds = 100,
       .kinds = TrainedRuns::kKinds});
}
