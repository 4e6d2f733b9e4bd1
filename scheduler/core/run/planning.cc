#include "scheduler/core/run/planning.h"

#include <algorithm>
#include <utility>

#include "scheduler/core/run/pool.h"

namespace modelet::scheduler {

bool Planning::includes(uint64_t node) const {
  return wanted_ && std::ranges::find(wanted_->nodes, node, &Member::node) != wanted_->nodes.end();
}

void Planning::request(Pool& pool, PlanRequest request, Wanted wanted) {
  run_ = request.run;
  request.number = number_ = pool.next_plan++;
  for (const Member& chosen : wanted.nodes) {
    request.nodes.push_back(pool.capacity(chosen.node, chosen.speed));
    Node& node = pool.nodes.at(chosen.node);
    if (wanted.purpose != Purpose::kGain && node.is_free()) node.planned_for = run_;
  }
  wanted_ = std::move(wanted);
  pool.actions.push_back(std::move(request));
}

void Planning::forget(Pool& pool) {
  if (!wanted_) return;
  pool.actions.emplace_back(ForgetPlan{number_});
  end(pool);
}

std::optional<Planning::Wanted> Planning::answered(Pool& pool, uint64_t number) {
  return wanted_ && number_ == number ? std::optional(end(pool)) : std::nullopt;
}

// The nodes that were reserved for the plan are free again.
Planning::Wanted Planning::end(Pool& pool) {
  for (const Member& chosen : wanted_->nodes)
    if (Node* node = pool.node(chosen.node); node != nullptr && node->planned_for == run_)
      node->planned_for = 0;
  return *std::exchange(wanted_, std::nullopt);
}

}  // namespace modelet::scheduler
