// The part of Core that decides which runs get nodes, and when. The highest priority comes first; among
// equals, the run that was submitted first.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <vector>

#include "scheduler/core/core.h"
#include "scheduler/core/values/text.h"

namespace modelet::scheduler {
namespace {

// Whether a run that lacks `lacking` nodes now could have to wait longer if another run took `taken` nodes.
// The run begins once the groups that have ended have given back at least `lacking` nodes, and groups may end
// in any order. It waits longer only if the nodes of some set of `groups` are enough for it, but not enough
// for both runs: at least `lacking`, and fewer than `lacking` + `taken`.
bool may_delay(const std::vector<size_t>& groups, size_t lacking, size_t taken) {
  std::vector<bool> sums(lacking + taken, false);  // [n]: some set of groups has n nodes
  sums[0] = true;
  for (const size_t nodes : groups)
    for (size_t sum = sums.size(); sum-- > nodes;)
      if (sums[sum - nodes]) sums[sum] = true;
  return std::find(sums.begin() + static_cast<std::ptrdiff_t>(lacking), sums.end(), true) != sums.end();
}

}  // namespace

// A run that wants more nodes than the pool has delays no other run. A run that waits for nodes which other
// runs hold is not delayed by runs behind it in the queue.
void Core::start_waiting_runs() {
  if (judge_at_ != 0) return;  // agents of a former scheduler are still coming back
  std::vector<Run*> queue;
  for (auto& [id, run] : pool_.runs)
    if (run.is_waiting() && !run.planning) queue.push_back(&run);
  std::ranges::stable_sort(
      queue, [](const Run* a, const Run* b) { return a->submit.priority > b->submit.priority; });
  std::vector<const Run*> held_up;
  for (Run* run : queue) {
    const size_t wanted = run->wanted_nodes(pool_), free = pool_.free_nodes().size(),
                 present = pool_.willing_nodes();
    if (wanted > free) {
      const bool can_get = wanted <= present;
      if (can_get) held_up.push_back(run);
      if (run->state == comm::control::RunState::Queued)
        run->detail = can_get ? fmt::format("waits for {}, {} of the pool's {} free", nodes_text(wanted),
                                            free == 1 ? "1 is" : fmt::format("{} are", free), present)
                              : fmt::format("waits for {}, the pool has {}", nodes_text(wanted), present);
      continue;
    }
    const auto holds_up = [&](const Run* before) {
      return may_delay(sizes_of_groups(), before->wanted_nodes(pool_) - free, wanted);
    };
    const auto before = std::ranges::find_if(held_up, holds_up);
    if (before == held_up.end())
      run->place(pool_);
    else if (run->state == comm::control::RunState::Queued)
      run->detail = fmt::format("waits behind run {}", (*before)->id);
  }
}

std::vector<size_t> Core::sizes_of_groups() const {
  std::map<uint64_t, size_t> nodes;
  for (const auto& [id, node] : pool_.nodes)
    if (const uint64_t run = node.run != 0 ? node.run : node.planned_for; run != 0 && node.is_willing())
      ++nodes[run];
  std::vector<size_t> sizes;
  for (const auto& [run, count] : nodes) sizes.push_back(count);
  return sizes;
}

}  // namespace modelet::scheduler
