// simulate_makespan: how long a run of tasks takes in a pool, by the scheduler's real decisions, in simulated time. The
// seconds of each task, alone on one node, were measured elsewhere and come as arguments.
#include <CLI/CLI.hpp>
#include <iostream>
#include <numeric>
#include <vector>

#include "tests/scheduler/core/submission.h"
#include "tests/simulation/chain_workload.h"
#include "tests/simulation/pool.h"

namespace modelet::simulation {
namespace {

constexpr uint64_t kSteps = 100, kSnapshotEvery = 20;

// Seconds from the submission until all tasks are done.
double makespan(uint32_t nodes, const std::vector<double>& task_seconds, double round_trip) {
  Pool pool(1, [](World& world) { return std::make_unique<ChainWorkload>(world); }, true, Mutant::kNone, false);
  pool.network.set_round_trip(round_trip);
  pool.scheduler.start();
  for (uint32_t node = 0; node < nodes; ++node) pool.add_node();
  const std::string name = "run";
  pool.promises.add(name, {});
  for (size_t task = 0; task < task_seconds.size(); ++task)
    pool.promises.add(fmt::format("{}.{:03}", name, task), {.steps = kSteps,
                                                            .snapshot_every = kSnapshotEvery,
                                                            .step_seconds = task_seconds[task] / kSteps});
  msg::SubmitT submit =
      scheduler::test::submission_of_tasks(static_cast<uint32_t>(task_seconds.size()), 0, name);
  submit.token = 1;
  Client& client = pool.add_client();
  constexpr double kRegistered = 5;
  pool.world.after(kRegistered, [&client, submit] { client.start(submit); });
  bool has_begun = false;
  while (pool.world.advance() && pool.world.violation().empty()) {
    has_begun = has_begun || client.run() != 0;
    if (has_begun && client.is_done()) return pool.world.now() - kRegistered;
  }
  throw std::runtime_error("the run did not end: " + pool.world.violation());
}

int run(int argc, char** argv) {
  CLI::App app("Simulates how long a run of tasks takes on a pool, by the scheduler's real decisions.");
  uint32_t nodes = 1, tasks = 0;
  std::vector<double> measured, round_trips{0.1, 1, 20};
  double least_speedup = 0;
  app.add_option("--nodes", nodes, "all equally fast")->required();
  app.add_option("--task-seconds", measured, "of each task, alone on one node")->delimiter(',')->required();
  app.add_option("--tasks", tasks, "repeat the seconds until there are so many tasks");
  app.add_option("--round-trip-ms", round_trips, "between scheduler and nodes")->delimiter(',');
  app.add_option("--least-speedup", least_speedup, "fail if all nodes are not so many times as fast as one");
  CLI11_PARSE(app, argc, argv);
  std::vector<double> seconds = measured;
  for (size_t i = 0; seconds.size() < tasks; ++i) seconds.push_back(measured[i % measured.size()]);
  bool good = true;
  for (const double round_trip : round_trips) {
    const double one = makespan(1, seconds, round_trip / 1e3), all = makespan(nodes, seconds, round_trip / 1e3);
    good = good && one / all >= least_speedup;
    std::cout << fmt::format("{} tasks of {:.1f} s, round trip {} ms: {:.1f} s on 1 node, {:.1f} s on {}: {:.1f} times\n",
                             seconds.size(), std::accumulate(seconds.begin(), seconds.end(), 0.0) / seconds.size(),
                             round_trip, one, all, nodes, one / all);
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace modelet::simulation

int main(int argc, char** argv) { return modelet::simulation::run(argc, argv); }
