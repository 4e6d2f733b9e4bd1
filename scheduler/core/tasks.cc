// The part of Core that looks after runs of tasks: it makes the runs of their tasks, and second copies of slow ones.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "scheduler/core/core.h"

namespace modelet::scheduler {

namespace msg = comm::control;
using msg::RunState;

// Does all that follows from what has happened, for which a run or a task may have waited.
void Core::settle() {
  while (std::exchange(queue_moves_, false)) {
    look_after_tasks();
    start_waiting_runs();
    queue_moves_ = give_up_copies();
    if (!queue_moves_) start_copies();
  }
}

Run& Core::add_task(uint64_t parent, uint32_t task, std::optional<comm::Snapshot> from) {
  const uint64_t id = pool_.next_run++;
  pool_.changes.pool = pool_.record();
  pool_.changed_runs.insert(id);
  Run& run = pool_.runs.emplace(id, Run(id, pool_.runs.at(parent), task, std::move(from))).first->second;
  run.begin(pool_.now);
  run.count(pool_);
  return run;
}

void Core::look_after_tasks() {
  std::map<uint64_t, std::vector<std::vector<Run*>>> copies;
  for (auto& [id, run] : pool_.runs)
    if (!run.results().empty() && !has_ended(run.state())) copies[id].resize(run.results().size());
  if (copies.empty()) return;
  for (auto& [id, run] : pool_.runs)
    if (const auto of_parent = copies.find(run.parent()); of_parent != copies.end())
      of_parent->second[run.task()].push_back(&run);
  for (const auto& [id, of_tasks] : copies) {
    Run& parent = pool_.runs.at(id);
    parent.look_after(pool_, of_tasks);
    if (!has_ended(parent.state())) continue;
    for (const auto& of_task : of_tasks)  // the ledger may forget them from now on
      for (const Run* run : of_task) pool_.changed_runs.insert(run->id());
  }
}

namespace {

// Of each task for which two runs have not ended, the later one.
std::vector<Run*> later_copies(Pool& pool) {
  std::set<std::pair<uint64_t, uint32_t>> seen;
  std::vector<Run*> later;
  for (auto& [id, run] : pool.runs)
    if (run.parent() != 0 && !has_ended(run.state()) && !seen.emplace(run.parent(), run.task()).second)
      later.push_back(&run);
  return later;
}

// The runs of which a task waits. All of them if something waits for nodes that others have.
struct Shortage {
  bool is_of_all = false;
  std::set<uint64_t> runs;
  bool concerns(uint64_t parent) const { return is_of_all || runs.contains(parent); }
};

Shortage shortage_of(const Pool& pool) {
  Shortage shortage;
  const size_t free = pool.free_nodes().size(), present = pool.willing_nodes();
  for (const auto& [id, run] : pool.runs) {
    if (!run.is_waiting() || run.planning().is_open()) continue;
    if (run.parent() != 0) shortage.runs.insert(run.parent());
    const size_t wanted = run.wanted_nodes(pool.options.max_nodes, present);
    shortage.is_of_all = shortage.is_of_all || (wanted > free && wanted <= present);
  }
  return shortage;
}

}  // namespace

// A second copy must not hold a node for which somebody waits. True if one was given up.
bool Core::give_up_copies() {
  bool any = false;
  const Shortage shortage = shortage_of(pool_);
  for (Run* copy : later_copies(pool_)) {
    if (!shortage.concerns(copy->parent())) continue;
    copy->give_up(pool_, "its node is needed for what waits");
    any = true;
  }
  return any;
}

// When nothing waits, a free node takes a second copy of the task that has longest to go. The first result counts.
void Core::start_copies() {
  if (judge_at_ != 0) return;  // agents of a former scheduler are still coming back
  const Shortage shortage = shortage_of(pool_);
  for (size_t spare = pool_.nodes_to_spare(0); spare > 0; spare = pool_.nodes_to_spare(0)) {
    std::map<std::pair<uint64_t, uint32_t>, size_t> count;
    for (const auto& [id, run] : pool_.runs)
      if (run.parent() != 0 && !has_ended(run.state())) ++count[{run.parent(), run.task()}];
    const std::map<uint64_t, size_t> at_work = nodes_of_tasks();
    const Run* slowest = nullptr;
    for (const auto& [id, run] : pool_.runs) {
      if (run.parent() == 0 || !run.is_worth_a_copy(pool_.now) || shortage.concerns(run.parent())) continue;
      const Run& parent = pool_.runs.at(run.parent());
      const size_t most = parent.most_nodes_at_once(), nodes = run.submit().nodes;
      if (parent.state() != RunState::Running || count.at({run.parent(), run.task()}) > 1 || nodes > spare ||
          (most != 0 && at_work.at(parent.id()) + nodes > most))
        continue;
      if (slowest == nullptr || run.seconds_left(pool_.now) > slowest->seconds_left(pool_.now))
        slowest = &run;
    }
    if (slowest == nullptr) return;
    Run& copy = add_task(slowest->parent(), slowest->task(), slowest->start_of_copy());
    pool_.log(fmt::format("run {}: a free node takes task {} as well, as run {}", copy.parent(), copy.task(),
                          copy.id()));
    copy.place(pool_);
  }
}

// How many nodes work for tasks of each run, or will when they are planned.
std::map<uint64_t, size_t> Core::nodes_of_tasks() const {
  std::map<uint64_t, size_t> nodes;
  for (const auto& [id, node] : pool_.nodes)
    if (const auto run = pool_.runs.find(node.run != 0 ? node.run : node.planned_for);
        run != pool_.runs.end() && run->second.parent() != 0)
      ++nodes[run->second.parent()];
  return nodes;
}

}  // namespace modelet::scheduler
