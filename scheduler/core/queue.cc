// The part of Core that decides which runs get nodes, and when. The highest priority comes first; among
// equals, the run that was submitted first. Tasks of several runs take turns.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "scheduler/core/core.h"
#include "scheduler/core/values/text.h"

namespace modelet::scheduler {

// A run that wants more nodes than the pool has delays no other run. A run that waits for nodes which other
// runs hold is not delayed by runs behind it in the queue.
void Core::start_waiting_runs() {
  if (judge_at_ != 0) return;  // agents of a former scheduler are still coming back
  std::set<uint64_t> tried;
  while (start_next_run(tried)) continue;
}

// Starts the first run of the queue that can start, unless it was `tried`. False: none can.
bool Core::start_next_run(std::set<uint64_t>& tried) {
  std::map<uint64_t, size_t> of_run = nodes_of_tasks();
  std::map<std::string, size_t> of_key;
  for (const auto& [id, nodes] : of_run) of_key[pool_.runs.at(id).submitter()] += nodes;
  std::vector<Run*> queue;
  for (auto& [id, run] : pool_.runs)
    if (run.is_waiting() && !run.planning().is_open() && !tried.contains(id)) queue.push_back(&run);
  // Of tasks, the next one is of the key, and then of the run, for whose tasks the fewest nodes work. One that has begun
  // goes before those of its run that have not.
  std::ranges::stable_sort(queue, std::less<>(), [&](const Run* run) {
    const bool is_task = run->parent() != 0;
    return std::tuple(-int64_t{run->submit().priority}, is_task ? of_key[run->submitter()] : 0,
                      is_task ? of_run[run->parent()] : 0, run->whole(),
                      is_task && run->state() == comm::control::RunState::Queued);
  });
  uint32_t place = 0;
  for (Run* run : queue) run->set_queue_place(++place);
  const FreeNodes now_free(pool_, 0);
  const size_t free = now_free.free(), present = now_free.present();
  // Those that wait for nodes of others and hold up more than all before them: how many nodes they leave to runs
  // behind them.
  std::vector<std::pair<size_t, const Run*>> strictest;
  for (Run* run : queue) {
    const size_t wanted = run->wanted_nodes(pool_.options.max_nodes, present);
    if (run->parent() != 0) {
      const size_t most = pool_.runs.at(run->parent()).most_nodes_at_once();
      if (most != 0 && of_run[run->parent()] + wanted > most) {
        run->explain_wait(fmt::format("waits for one of the {} that its run may have", nodes_text(most)));
        continue;
      }
    }
    if (const std::string why = run->lacks_owners(pool_, true); !why.empty()) {
      run->explain_wait(why);
      continue;
    }
    if (wanted > free) {
      const bool can_get = wanted <= present;
      if (const size_t left = now_free.left_by(wanted);
          can_get && (strictest.empty() || left < strictest.back().first))
        strictest.emplace_back(left, run);
      run->explain_wait(can_get ? fmt::format("waits for {}, {} of the pool's {} free", nodes_text(wanted),
                                              free == 1 ? "1 is" : fmt::format("{} are", free), present)
                                : fmt::format("waits for {}, the pool has {}", nodes_text(wanted), present));
      continue;
    }
    const auto before =
        std::ranges::find_if(strictest, [&](const auto& each) { return each.first < wanted; });
    if (before != strictest.end()) {
      run->explain_wait(fmt::format("waits behind run {}", before->second->whole()));
      continue;
    }
    tried.insert(run->id());
    run->place(pool_);
    return true;
  }
  return false;
}

}  // namespace modelet::scheduler
