#include "tests/simulation/history.h"

#include <algorithm>

#include "tests/simulation/pool.h"

namespace modelet::simulation {
namespace {

constexpr double kFirstFault = 0.5, kLastFault = 35, kCease = 45;  // seconds
constexpr double kAway = 12;                                         // seconds that a disaster lasts
constexpr double kLongestEnd = 600;                                  // by then all runs must have ended after kCease

void submit(Pool& pool, RunSpec spec, uint32_t nodes, uint32_t output_modelets, uint64_t kind, double after) {
  const std::string name = fmt::format("run{}", pool.clients.size());
  spec.may_have_tasks = pool.scheduler.has_store();
  msg::SubmitT message = pool.workload->submission(name, spec, nodes, output_modelets, kind);
  pool.promises.add(name, spec);
  Client& client = pool.add_client();
  message.token = pool.clients.size();
  pool.world.after(after, [&client, message = std::move(message)] { client.start(message); });
}

class Player {
 public:
  explicit Player(const HistoryOptions& options)
      : options_(options), pool_(options.seed, options.workload, options.is_small || Rng(options.seed, {3}).below(5) > 0, options.mutant,
                                 options.tells) {}

  History play() {
    pool_.scheduler.start();
    pool_.add_client().start();  // the administrator
    if (options_.is_small)
      set_up_small();
    else
      set_up_drawn();
    watch();
    while (!is_over_ && pool_.world.violation().empty() && pool_.world.advance()) {
    }
    if (pool_.world.violation().empty()) check_ends();
    history_.violation = pool_.world.violation();
    history_.story = pool_.world.story();
    history_.digest = pool_.world.digest();
    history_.messages = pool_.network.messages();
    history_.points = pool_.scheduler.points();
    history_.seconds = pool_.world.now();
    return std::move(history_);
  }

 private:
  void set_up_drawn() {
    Rng rng(options_.seed, {4});
    const uint32_t nodes = rng.below(3) > 0 ? 2 + rng.below(3) : 1 + rng.below(8);
    for (uint32_t i = 0; i < nodes; ++i) pool_.add_node();
    for (uint32_t i = 0; i <= rng.below(2); ++i) submit_run(pool_, rng.next());
    std::vector<PlannedFault> faults = plan_faults(options_.seed, kFirstFault, kLastFault);
    std::erase_if(faults, [&](const PlannedFault& fault) { return options_.without.contains(fault.fault); });
    for (const PlannedFault& fault : faults)
      pool_.world.after(fault.time, [this, fault] {
        if (!is_of_user(fault.fault)) pool_.promises.disturbed();
        happen(pool_, fault);
      });
    if (std::ranges::all_of(faults, [](const PlannedFault& each) { return is_of_user(each.fault); }))
      pool_.promises.nothing_else_happens();
    cease_at_ = kCease;
    pool_.world.after(kCease, [this] { cease(pool_); });
  }

  void set_up_small() {
    pool_.promises.disturbed();  // each has a fault
    const bool is_disaster = options_.disaster.time > 0;
    const uint32_t nodes = is_disaster ? 4 : 3, needed = is_disaster ? 4 : 2;
    for (uint32_t i = 0; i < nodes; ++i) pool_.add_node();
    submit(pool_, {.steps = 10, .snapshot_every = 3, .step_seconds = 0.2}, options_.seed % 2 == 0 ? needed : 0, needed,
           options_.seed, 0.5);
    if (is_disaster) pool_.world.after(options_.disaster.time, [this] { strike(); });
    pool_.network.intervene(options_.intervention);
    if (options_.scheduler_point > 0)
      pool_.scheduler.crash_at(options_.scheduler_point, 2, [this] { something_beside(); });
  }

  void strike() {
    const HistoryOptions::Disaster& disaster = options_.disaster;
    bool is_third = true;
    for (size_t i = 0; i < pool_.nodes.size(); ++i) {
      Node& node = *pool_.nodes[i];
      if (i == disaster.first || i == disaster.second) {
        node.crash(kAway, disaster.disks_are_lost);
        if (disaster.disks_are_lost) node.disk().lose_all();
      } else if (std::exchange(is_third, false)) {
        node.disk().fill(kAway);
      } else if (disaster.file) {
        node.disk().rot(*disaster.file);
      }
    }
  }

  void something_beside() {
    Node& node = *pool_.nodes[1];
    switch (options_.beside) {
      case HistoryOptions::Beside::kNothing:
        return;
      case HistoryOptions::Beside::kKill:
        return node.crash(12, false);
      case HistoryOptions::Beside::kZombie:  // the scheduler loses it, and its peers still hear it
        pool_.network.block(node.machine(), 0, 12);
        return pool_.network.block(0, node.machine(), 12);
      case HistoryOptions::Beside::kSubmit:
        return submit(pool_, {.steps = 4, .snapshot_every = 2, .step_seconds = 0.2}, 0, 2, options_.seed, 0);
    }
  }

  bool have_ended() {
    if (!pool_.scheduler.is_alive() || pool_.scheduler.is_stalled()) return false;
    const auto runs = pool_.scheduler.runs();
    pool_.promises.running(runs);
    return std::ranges::all_of(runs, [](const auto& run) { return scheduler::has_ended(run.state); }) &&
           std::ranges::all_of(pool_.clients, [](const auto& client) { return client->is_done(); });
  }

  // Runs every second. The history is over once all runs have been over for a while.
  void watch() {
    const double now = pool_.world.now();
    if (!have_ended()) ended_since_ = now;
    is_over_ = now - ended_since_ > 3;
    if (now > cease_at_ + kLongestEnd) pool_.world.violated("runs do not end: " + states());
    if (!is_over_) pool_.world.after(1, [this] { watch(); });
  }

  std::string states() {
    std::string text;
    if (!pool_.scheduler.is_alive()) return "the scheduler is away";
    for (const msg::RunStatusT& run : pool_.scheduler.runs())
      text += fmt::format("run {} is {} at step {} in epoch {} '{}'; ", run.run, scheduler::state_name(run.state),
                          run.step, run.epoch, run.detail);
    for (const auto& client : pool_.clients)
      if (!client->is_done()) text += fmt::format("the client of run {} waits; ", client->run());
    return text;
  }

  void check_ends() {
    std::set<uint64_t> may_be_stopped;
    for (const auto& client : pool_.clients)
      if (client->has_stopped()) may_be_stopped.insert(client->run());
    for (const msg::RunStatusT& run : pool_.scheduler.runs()) {
      pool_.promises.ended(run, pool_.scheduler.files_of(run.run),
                           may_be_stopped.contains(run.parent == 0 ? run.run : run.parent));
      if (run.parent != 0) continue;
      history_.finished += run.state == msg::RunState::Finished;
      history_.stopped += run.state == msg::RunState::Stopped;
      history_.failed += run.state == msg::RunState::Failed;
      history_.recoveries += run.recoveries;
    }
  }

  const HistoryOptions options_;
  Pool pool_;
  History history_;
  double cease_at_ = 0, ended_since_ = 0;
  bool is_over_ = false;
};

}  // namespace

void submit_run(Pool& pool, uint64_t seed) {
  Rng rng(seed);
  const RunSpec spec{.steps = 5 + rng.below(50), .snapshot_every = 1 + rng.below(8), .step_seconds = 0.05 + 0.4 * rng.uniform_double()};
  const uint32_t nodes = rng.below(2) == 0 ? 0 : 1 + rng.below(static_cast<uint32_t>(std::min<size_t>(4, pool.nodes.size())));
  const uint32_t modelets = 1 + rng.below(4);
  const double after = 10 * rng.uniform_double();
  submit(pool, spec, nodes, modelets, rng.next(), after);
}

History play(const HistoryOptions& options) { return Player(options).play(); }

}  // namespace modelet::simulation
