// The part of Core that decides which runs get nodes, and when. The highest priority comes first; among
// equals, the run that was submitted first.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <utility>
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
    if (run.is_waiting() && !run.planning().is_open()) queue.push_back(&run);
  std::ranges::stable_sort(
      queue, [](const Run* a, const Run* b) { return a->submit().priority > b->submit().priority; });
  std::optional<FreeNodes> now_free(std::in_place, pool_, 0);
  std::vector<const Run*> held_up;
  // Those of them that hold up more than all before them: how many nodes they leave to runs behind them.
  std::vector<std::pair<size_t, const Run*>> strictest;
  const auto wanted_by = [&](const Run& run) {
    return run.wanted_nodes(pool_.options.max_nodes, now_free->present());
  };
  const auto hold_up = [&](const Run* run) {
    const size_t left = now_free->left_by(wanted_by(*run));
    if (strictest.empty() || left < strictest.back().first) strictest.emplace_back(left, run);
  };
  for (Run* run : queue) {
    const size_t wanted = wanted_by(*run), free = now_free->free(), present = now_free->present();
    if (wanted > free) {
      const bool can_get = wanted <= present;
      if (can_get) {
        held_up.push_back(run);
        hold_up(run);
      }
      run->explain_wait(can_get ? fmt::format("waits for {}, {} of the pool's {} free", nodes_text(wanted),
                                              free == 1 ? "1 is" : fmt::format("{} are", free), present)
                                : fmt::format("waits for {}, the pool has {}", nodes_text(wanted), present));
      continue;
    }
    const auto before =
        std::ranges::find_if(strictest, [&](const auto& each) { return each.first < wanted; });
    if (before != strictest.end()) {
      run->explain_wait(fmt::format("waits behind run {}", before->second->id()));
      continue;
    }
    run->place(pool_);
    now_free.emplace(pool_, 0);
    strictest.clear();
    for (const Run* each : held_up) hold_up(each);
  }
}

}  // namespace modelet::scheduler
