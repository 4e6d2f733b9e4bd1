#include "scheduler/core/invariants.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;
using msg::RunState;

bool has_group(RunState state) {
  return state == RunState::Forming || state == RunState::Running || state == RunState::Stopping;
}

bool is_reserved(const Pool& pool, uint64_t node, uint64_t run) {
  const auto found = pool.runs.find(run);
  return found != pool.runs.end() && found->second.planning().includes(node);
}

std::string broken_by_node(const Pool& pool, uint64_t id, const Node& node) {
  const auto named = [&](const std::string& what) {
    return fmt::format("node '{}' {}", node.info.name, what);
  };
  if (node.run != 0) {
    const auto run = pool.runs.find(node.run);
    if (run == pool.runs.end())
      return "1: " + named(fmt::format("works for run {}, which does not exist", node.run));
    if (run->second.state() == RunState::Queued)
      return "1: " + named(fmt::format("works for run {}, which is queued", node.run));
    if (node.planned_for != 0)
      return "1: " +
             named(fmt::format("works for run {} and is reserved for run {}", node.run, node.planned_for));
  }
  if (node.planned_for != 0 && !is_reserved(pool, id, node.planned_for))
    return "1: " +
           named(fmt::format("is reserved for run {}, which does not plan with it", node.planned_for));
  if (const auto name = pool.names.find(node.info.name);
      !node.key.empty() && (name == pool.names.end() || name->second.key != node.key))
    return "5: " +
           named(fmt::format("registered with the key '{}', which does not have this name", node.key));
  return "";
}

}  // namespace

void Invariants::begin(const Pool& restored) {
  for (const auto& [id, run] : restored.runs) {
    seen_[id].epoch = run.epoch();
    seen_[id].results = run.results();
  }
}

std::string Invariants::broken_by(const Pool& pool) {
  std::erase_if(seen_, [&](const auto& entry) { return !pool.runs.contains(entry.first); });
  for (const auto& [id, node] : pool.nodes)
    if (std::string broken = broken_by_node(pool, id, node); !broken.empty()) return broken;
  if (std::string broken = broken_by_actions(pool); !broken.empty()) return broken;
  for (const auto& [id, run] : pool.runs)
    if (std::string broken = broken_by_run(pool, run); !broken.empty()) return broken;
  return broken_by_tasks(pool);
}

std::string Invariants::broken_by_tasks(const Pool& pool) {
  struct Copies {
    size_t number = 0;  // that have not ended
    bool waits = true;  // all of them do
  };
  std::map<uint64_t, std::map<uint32_t, Copies>> copies;  // of runs that have not ended
  for (const auto& [id, run] : pool.runs) {
    if (run.parent() == 0 || has_ended(run.state())) continue;
    const auto parent = pool.runs.find(run.parent());
    if (parent == pool.runs.end() || has_ended(parent->second.state()))
      return fmt::format("6: run {} is a task of run {}, which does not go on", id, run.parent());
    Copies& of_task = copies[run.parent()][run.task()];
    if (++of_task.number > 2)
      return fmt::format("6: task {} of run {} has more than two copies", run.task(), run.parent());
    of_task.waits = of_task.waits && run.is_waiting() && !run.planning().is_open();
  }
  for (const auto& [id, tasks] : copies) {
    const auto waits = std::ranges::find_if(tasks, [](const auto& each) { return each.second.waits; });
    const auto copied = std::ranges::find_if(tasks, [](const auto& each) { return each.second.number > 1; });
    if (waits != tasks.end() && copied != tasks.end())
      return fmt::format("6: task {} of run {} waits, and task {} has two copies", waits->first, id,
                         copied->first);
  }
  for (const auto& [id, run] : pool.runs) {
    Seen& seen = seen_[id];
    for (size_t task = 0; task < run.results().size(); ++task) {
      const uint64_t result = run.results()[task];
      if (task < seen.results.size() && seen.results[task] != 0 && seen.results[task] != result)
        return fmt::format("6: the result of task {} of run {} was run {}, and is run {}", task, id,
                           seen.results[task], result);
      if (result == 0) continue;
      const auto found = pool.runs.find(result);
      if (found == pool.runs.end() || found->second.parent() != id || found->second.task() != task ||
          found->second.state() != RunState::Finished)
        return fmt::format("6: the result of task {} of run {} is run {}, which is none", task, id, result);
    }
    seen.results = run.results();
  }
  return "";
}

// A group is formed by a Prepare for each rank, in order. So a Prepare that does not come later than the one
// before it begins a group whose epoch has not grown.
std::string Invariants::broken_by_actions(const Pool& pool) {
  for (const Action& action : pool.actions) {
    const auto* send = std::get_if<Send>(&action);
    const auto* prepare = send == nullptr ? nullptr : std::get_if<msg::PrepareT>(&send->message);
    if (prepare == nullptr || !pool.runs.contains(prepare->run)) continue;
    Seen& seen = seen_[prepare->run];
    const std::pair place(prepare->epoch, prepare->rank);
    if (prepare->epoch <= seen.epoch || place <= seen.prepared)
      return fmt::format("4: a group of run {} begins with epoch {}, which is not new", prepare->run,
                         prepare->epoch);
    seen.prepared = place;
  }
  return "";
}

std::string Invariants::broken_by_run(const Pool& pool, const Run& run) {
  Seen& seen = seen_[run.id()];
  if (seen.ended && (run.state() != seen.state || run.step() != seen.step || run.detail() != seen.detail))
    return fmt::format("2: run {} has ended ({}, '{}') and changed ({}, '{}')", run.id(),
                       state_name(seen.state), seen.detail, state_name(run.state()), run.detail());
  if (run.epoch() < seen.epoch)
    return fmt::format("4: the epoch of run {} went from {} to {}", run.id(), seen.epoch, run.epoch());
  seen.epoch = run.epoch();
  if (!seen.ended && has_ended(run.state())) {
    seen.ended = true;
    seen.state = run.state();
    seen.step = run.step();
    seen.detail = run.detail();
  }
  if (!has_group(run.state()) || !run.results().empty()) return "";
  for (const Member& member : run.group().members()) {
    const auto node = pool.nodes.find(member.node);
    const bool works =
        node != pool.nodes.end() && node->second.run == run.id() && node->second.epoch == run.epoch();
    const bool may_come_back = member.node == 0 && pool.awaits_members;
    if (!works && !member.done && !may_come_back)
      return fmt::format("3: run {} ({}) waits for node '{}', which does not work for it", run.id(),
                         state_name(run.state()), member.name);
  }
  return run.group().members().empty()
             ? fmt::format("3: run {} ({}) has no nodes", run.id(), state_name(run.state()))
             : "";
}

}  // namespace modelet::scheduler
