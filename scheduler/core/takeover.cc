// The part of Core that begins where a former scheduler ended. Groups go on working while there is no
// scheduler. Their agents register with the run that they work for, and the run takes them over. A member
// that has not come back after `dead_after` is lost.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "scheduler/core/core.h"
#include "scheduler/core/node_record.h"
#include "scheduler/core/submission.h"
#include "scheduler/core/values/text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;

}  // namespace

Core::Core(const CoreOptions& options, const Records& restored) : pool_(options) {
  if (restored.pool) {
    pool_.next_run = restored.pool->next_run;
    pool_.node_seconds = static_cast<double>(restored.pool->node_seconds);
    pool_.losses = restored.pool->losses;
    pool_.pool_id = restored.pool->id;
  } else {
    pool_.changes.pool = pool_.record();
  }
  for (const NodeNameRecord& name : restored.names)
    if (!name.key.empty()) pool_.names[name.name] = {name.key, 0};
  for (const DrainRecord& each : restored.drains) pool_.drained.insert(each.name);
  for (const NodeRecord& record : restored.nodes) restore(record);
  for (const RunRecord& record : restored.runs) restore(record);
  for (const RunEventRecord& event : restored.events)
    if (const auto run = pool_.runs.find(event.run); run != pool_.runs.end())
      run->second.restore_event(pool_, event);
  invariants_.begin(pool_);
}

void Core::restore(const RunRecord& record) {
  try {
    Run run(record);
    if (run.parent() == 0) {
      run.accept(checked_submission(run.submit(), pool_.options.data_port));
    } else {
      const auto parent = pool_.runs.find(run.parent());  // its number is smaller, so it comes first
      if (parent == pool_.runs.end()) throw FormatError("the run of which it is a task is not known");
      run.accept_task(parent->second);
    }
    pool_.awaits_members = pool_.awaits_members || !has_ended(run.state());
    pool_.next_run = std::max(pool_.next_run, record.id + 1);
    pool_.runs.emplace(record.id, std::move(run)).first->second.count(pool_);
  } catch (const std::exception& error) {
    pool_.log(
        fmt::format("run {} of a former scheduler is given up: {}", record.id, kept_text(error.what())));
  }
}

void Core::restore(const NodeRecord& record) {
  try {
    msg::NodeStatusT node = absent_node(record);
    if (record.lost_at == 0) {
      pool_.awaited[record.name] = std::move(node);
      return;
    }
    const uint64_t now = pool_.calendar_seconds();
    pool_.lost[record.name] = {std::move(node), -static_cast<double>(now - std::min(now, record.lost_at))};
  } catch (const std::exception& error) {
    pool_.log(fmt::format("a node of a former scheduler is forgotten: {}", kept_text(error.what())));
    pool_.changes.nodes.push_back({.name = record.name});
  }
}

// Called with the first event, because only then the time is known.
void Core::begin() {
  has_begun_ = true;
  queue_moves_ = true;  // plans that a former scheduler has requested will not come
  judge_at_ = pool_.awaits_members || !pool_.awaited.empty() ? pool_.now + pool_.options.dead_after : 0;
  for (auto& [name, lost] : pool_.lost) lost.since += pool_.now;
  for (auto& [id, run] : pool_.runs) run.begin(pool_.now);
}

// Takes over an agent that is a member of a group which goes on working, or which was to be formed anew
// anyway.
void Core::take_over(uint64_t node, const msg::RegisterT& message) {
  for (auto& [id, run] : pool_.runs) {
    if (has_ended(run.state()) || run.is_waiting()) continue;
    const std::vector<Member>& members = run.group().members();
    const auto member = std::ranges::find_if(
        members, [&](const Member& each) { return each.node == 0 && each.name == message.name; });
    if (member == members.end()) continue;
    const bool works_for_it = message.run == id && message.epoch == run.epoch();
    // The same process without a run: its job has ended, and its next message says how. (Another process
    // under this name never had the job.) If the group is to be formed anew, nobody waits for that message,
    // so the node is free.
    const bool is_awaited = run.state() == msg::RunState::Running || run.state() == msg::RunState::Stopping;
    const bool has_ended_there = is_awaited && message.run == 0 && message.incarnation == member->incarnation;
    if (!works_for_it && !has_ended_there) continue;
    run.member_returned(pool_, *member, node);
    pool_.log(fmt::format("run {}: node '{}' works on", id, message.name));
    return;
  }
  if (message.run == 0) return;
  pool_.nodes.at(node).stray = message.run;
  pool_.send(
      pool_.nodes.at(node).peer,
      msg::AbortT{{}, message.run, "the scheduler does not know this run on this node", message.epoch});
}

void Core::judge() {
  judge_at_ = 0;
  for (auto& [name, node] : std::exchange(pool_.awaited, {}))
    show_as_lost(std::move(node), "did not come back after the scheduler was restarted");
  if (!std::exchange(pool_.awaits_members, false)) return;
  for (auto& [id, run] : pool_.runs) run.judge(pool_);
}

}  // namespace modelet::scheduler
