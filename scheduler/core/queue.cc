// The part of Core that decides which runs get nodes, and when. The highest priority comes first; among
// equals, the run that was submitted first.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <vector>

#include "scheduler/core/core.h"
#include "scheduler/core/values/text.h"

namespace modelet::scheduler {

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
    const auto holds_up = [&](const Run* before) { return pool_.left_by(*before, run->id) < wanted; };
    const auto before = std::ranges::find_if(held_up, holds_up);
    if (before == held_up.end())
      run->place(pool_);
    else if (run->state == comm::control::RunState::Queued)
      run->detail = fmt::format("waits behind run {}", (*before)->id);
  }
}

}  // namespace modelet::scheduler
