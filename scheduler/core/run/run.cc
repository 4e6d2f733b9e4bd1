#include "scheduler/core/run/run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "scheduler/core/run/pool.h"
#include "scheduler/core/values/text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;
using msg::Outcome;
using msg::RunState;
using Purpose = Run::Planning::Purpose;
using Reason = Run::Regroup::Reason;

uint64_t bytes_of(const RunEventRecord& event) {
  return sizeof event + event.time.size() + event.text.size();
}

}  // namespace

bool has_ended(RunState state) {
  return state == RunState::Finished || state == RunState::Failed || state == RunState::Stopped;
}

const char* state_name(RunState state) {
  switch (state) {
    case RunState::Queued:
      return "queued";
    case RunState::Forming:
      return "forming";
    case RunState::Running:
      return "running";
    case RunState::Stopping:
      return "stopping";
    case RunState::Finished:
      return "finished";
    case RunState::Failed:
      return "failed";
    case RunState::Stopped:
      return "stopped";
    case RunState::Recovering:
      return "recovering";
    case RunState::Waiting:
      return "waiting";
  }
  return "unknown";
}

// ---- what its nodes report

void Run::reported(Pool& pool, uint64_t node, const msg::RunEventT& event, std::string text) {
  using enum msg::EventKind;
  const Node& sender = pool.nodes.at(node);
  // The list of runs shows why a run does not begin yet.
  if (state == RunState::Forming && (event.kind == Preparing || event.kind == Fetching) &&
      is_measure(event.done))
    detail = fmt::format("node '{}' {} data: {:.0f} %", sender.info.name,
                         event.kind == Preparing ? "prepares" : "fetches", 100 * std::min(event.done, 1.0));
  if (state == RunState::Running && members.front().node == node) {
    // Heartbeats report the step too, but later.
    if (event.kind == Progress) step = std::max(step, event.step);
    if (event.kind == Progress && !regroup) observe(pool, event);
    if (event.kind == Interrupted && regroup) return;  // watchers are not told, because the run goes on
  }
  pass_on(pool, std::move(text), sender.info.incarnation, event.number);
}

bool Run::has_heard(uint64_t agent, uint64_t number) const {
  const auto last = heard.find(agent);
  return number != 0 && last != heard.end() && number <= last->second;
}

Holding Run::holding() const {
  constexpr uint64_t kOfRun = 4096, kOfAddress = 128;
  const bool has_come_to_an_end = has_ended(state);
  return {.runs = has_come_to_an_end ? 0U : 1U,
          .bytes = kOfRun + 2 * submit.experiment.size() + submit.resume_files.size() +
                   kOfAddress * resume_files.size() + event_bytes,
          .addresses = has_come_to_an_end ? 0 : resume_files.size()};
}

void Run::shorten_log(Pool& pool) {
  has_short_log = true;
  pool.changes.shortened_logs.push_back(id);
  pool.changed_runs.insert(id);
  forget_old_events(pool);
}

// The newest one stays.
void Run::forget_old_events(Pool& pool) {
  constexpr uint64_t kShareOfEnded = 4, kShareOfShort = 32;
  const CoreOptions& most = pool.options;
  const uint64_t most_bytes = most.max_run_event_bytes / (has_short_log      ? kShareOfShort
                                                          : has_ended(state) ? kShareOfEnded
                                                                             : 1);
  const auto is_too_much = [&] {
    pool.count(*this);
    return events.size() > most.max_run_events || event_bytes > most_bytes ||
           (!submitter.empty() && pool.accounts.of(submitter).bytes > most.max_of_key.bytes) ||
           pool.accounts.all().bytes > most.max_bytes;
  };
  while (is_too_much() && events.size() > 1) {
    event_bytes -= bytes_of(events.front());
    events.pop_front();
  }
}

void Run::keep_event(Pool& pool, RunEventRecord event) {
  event_bytes += bytes_of(event);
  events.push_back(std::move(event));
  forget_old_events(pool);
}

void Run::publish(Pool& pool, nlohmann::json event) {
  if (std::string time = pool.utc(); !time.empty()) event["time"] = std::move(time);
  pass_on(pool, event.dump(), 0, 0);
}

// The event is kept as a line of text, so a client that asks later gets the same line.
void Run::pass_on(Pool& pool, std::string event, uint64_t agent, uint64_t number) {
  if (number != 0) heard[agent] = number;
  RunEventRecord record{id, ++last_event, pool.utc(), std::move(event), agent, number};
  for (const auto& [watcher, key] : watchers) pool.send(watcher, event_message(record));
  pool.changes.events.push_back(record);
  keep_event(pool, std::move(record));
}

msg::RunEventT Run::event_message(const RunEventRecord& event) const {
  return {{}, id, event.text, epoch, event.number};
}

void Run::member_done(Pool& pool, Member& finished, const msg::RunDoneT& message) {
  if (has_ended(state)) return pool.nodes.at(finished.node).release();
  finished.done = true;
  finished.outcome = message.outcome;
  step = std::max(step, message.step);
  last_news = pool.now;
  pool.changed_runs.insert(id);
  if (message.outcome != Outcome::Failed && state != RunState::Forming) return settle(pool);
  if (message.retry && state == RunState::Recovering) return;  // another member reports the same loss
  const std::string why =
      fmt::format("node '{}' failed at step {}: {}", finished.name, step, kept_text(message.message));
  const bool is_forming = state == RunState::Forming || state == RunState::Recovering;
  if (is_forming && has_run() && !message.retry) return not_prepared(pool, finished, why, message.user_error);
  constexpr uint32_t kFailuresInARow = 3;
  if (state == RunState::Forming && ++failures[finished.name] >= kFailuresInARow &&
      can_do_without(pool, finished.name))
    leave_out(pool, finished.name, why);
  if (message.retry || message.outcome != Outcome::Failed)
    return state == RunState::Stopping ? stopped_by_loss(pool, why) : recover(pool, why);
  fail(pool, why, message.user_error);
}

void Run::node_gone(Pool& pool, uint64_t node, const std::string& name, const std::string& why) {
  if (has_ended(state)) return;
  if (Member* lost = member(node))
    return member_lost(pool, *lost, fmt::format("node '{}' {} at step {}", name, why, step));
  if (!planning || planning->purpose == Purpose::kGain) return;
  // A node of the plan that is being made is gone, so another plan is needed.
  const bool goes_on = planning->purpose == Purpose::kGoOn;
  forget_planning(pool);
  if (goes_on) go_on(pool);
}

// ---- its end

// Decides what happens once all members have ended.
void Run::settle(Pool& pool) {
  const bool is_placed_anew = planning && planning->purpose == Purpose::kGoOn;
  if ((state != RunState::Running && state != RunState::Stopping) || is_placed_anew ||
      !std::ranges::all_of(members, &Member::done))
    return;
  const bool all_ok =
      std::ranges::all_of(members, [](const Member& each) { return each.outcome == Outcome::Ok; });
  if (all_ok || state == RunState::Stopping) return end_with_files(pool, all_ok);
  const bool is_stable = snapshots.newest() != nullptr && snapshots.stable_step() >= step;
  if (!is_stable && !can_be_moved(pool) && pool.now - last_news <= pool.options.stop_grace) {
    detail = fmt::format("brings the files of step {} to safety", step);
    return;
  }
  if (!regroup) return recover(pool, "its group stopped by itself");
  if (regroup->reason == Reason::kSlow) publish_replanned(pool);
  go_on(pool);
}

void Run::publish_replanned(Pool& pool) {
  ++replans;
  publish(pool, {{"event", "replanned"},
                 {"node", regroup->slow_node},
                 {"slower", regroup->slower},
                 {"moved_modelets", regroup->moved_modelets},
                 {"gain", regroup->gain},
                 {"step", step}});
}

// All members have ended well, or as they were asked to. The run has ended only once the files of its last
// step are safe: until then the loss of a node can still lose files that the user wants.
void Run::end_with_files(Pool& pool, bool all_ok) {
  const bool is_stable = snapshots.newest() != nullptr && snapshots.stable_step() >= step;
  if (!has_last_files(pool) && pool.now - last_news <= pool.options.hold_grace) {
    detail = fmt::format("brings the files of step {} to safety", step);
  } else if (!all_ok) {
    set_state(pool, RunState::Stopped,
              fmt::format("stopped at step {}{}", step,
                          is_stable ? ", checkpoint written" : "; " + where_it_stands()));
  } else if (is_stable) {
    set_state(pool, RunState::Finished,
              has_last_files(pool) ? "" : "its files could not be brought to the scheduler's store");
  } else {  // its last steps are computed again
    recover(pool, fmt::format("its nodes did not bring the files of step {} to safety within {:.0f} s", step,
                              pool.options.hold_grace));
  }
}

std::string Run::where_it_stands() const {
  if (snapshots.newest() == nullptr) return "nothing was saved";
  return fmt::format("its files are those of step {}", snapshots.stable_step());
}

void Run::asked_to_stop(Pool& pool) {
  const std::string between =
      fmt::format("stopped at step {} while its modelets were placed anew, checkpoint written", step);
  if (state == RunState::Queued) {
    set_state(pool, RunState::Stopped, "stopped while it waited");
  } else if (state == RunState::Recovering || state == RunState::Waiting ||
             (state == RunState::Forming && recoveries > 0)) {
    stopped_by_loss(pool, "stopped while its group was formed anew");
  } else if (state == RunState::Forming) {
    abort_members(pool, "the run was stopped");
    set_state(pool, RunState::Stopped, epoch == 1 ? "stopped before its first step" : between);
  } else if (state == RunState::Running && planning && planning->purpose == Purpose::kGoOn) {
    set_state(pool, RunState::Stopped, between);
  } else if (state == RunState::Running) {
    stop_to_end(pool, "asked to stop at the next step");
  }
}

void Run::stop_to_end(Pool& pool, const std::string& why) {
  stop_asked = pool.now;
  forget_planning(pool);
  regroup.reset();
  ask_members_to_stop(pool);
  set_state(pool, RunState::Stopping, why);
  settle(pool);
}

void Run::fail(Pool& pool, const std::string& why, bool by_user) {
  user_error = by_user;
  abort_members(pool, why);
  set_state(pool, RunState::Failed, why);
}

void Run::ask_members_to_stop(Pool& pool) const {
  for (const Member& each : members)
    if (const Node* node = pool.node(each.node); node != nullptr && !each.done)
      pool.send(node->peer, msg::StopT{{}, id, epoch});
}

// Tells the nodes that still work for the run to abort. Each stays bound until it answers.
void Run::abort_members(Pool& pool, const std::string& reason) const {
  for (const Member& each : members)
    if (const Node* node = pool.node(each.node); node != nullptr && node->run == id && !each.done)
      pool.send(node->peer, msg::AbortT{{}, id, reason, node->epoch});
}

// Releases or aborts the nodes of the run that are not in `group`.
void Run::release_others(Pool& pool, const std::vector<Member>& group, const std::string& reason) const {
  for (auto& [node_id, node] : pool.nodes) {
    if (node.run != id || std::ranges::find(group, node_id, &Member::node) != group.end()) continue;
    const auto before = std::ranges::find(members, node_id, &Member::node);
    if (before != members.end() && before->done)
      node.release();
    else
      pool.send(node.peer, msg::AbortT{{}, id, reason, node.epoch});
  }
}

void Run::set_state(Pool& pool, RunState to, const std::string& why) {
  MODELET_CHECK(!has_ended(state), "a run that has ended changes no more");
  state = to;
  detail = why;
  pool.changed_runs.insert(id);
  if (has_ended(to)) {
    ended = pool.now;
    regroup.reset();
    forget_planning(pool);
    for (const Member& each : members)  // members that were kept for a new plan
      if (Node* node = pool.node(each.node); each.done && node != nullptr && node->run == id) node->release();
  }
  pool.log(fmt::format("run {} '{}' {}{}{}", id, submit.name, state_name(to), why.empty() ? "" : ": ", why));
  tell_watchers(pool);
  if (!has_ended(to)) return;
  while (!watchers.empty()) remove_watcher(pool, std::string(watchers.begin()->first));
  forget_beginning();
  forget_old_events(pool);
  pool.shorten_old_logs(submitter);
}

// A run that has ended does not begin any more.
void Run::forget_beginning() {
  submit.resume_files.clear();
  resume_files.clear();
}

// ---- what it says

Run::Member* Run::member(uint64_t node) {
  const auto found = std::ranges::find(members, node, &Member::node);
  return found == members.end() ? nullptr : &*found;
}

msg::RunStatusT Run::status(double now) const {
  msg::RunStatusT status;
  status.run = id;
  status.name = submit.name;
  status.submitter = submitter;
  status.state = state;
  status.detail = detail;
  status.step = step;
  if (state != RunState::Waiting)
    for (const Member& each : members) status.node_names.push_back(each.name);
  status.seconds = (has_ended(state) ? ended : now) - submitted;
  status.replans = replans;
  status.user_error = user_error;
  status.epoch = epoch;
  status.stable_step = snapshots.stable_step();
  status.recoveries = recoveries;
  status.submitted = submitted_at;
  if (const auto straggler = find_straggler(balance.latest());
      straggler && straggler->excess >= kNotableExcess && !has_ended(state)) {
    status.straggler = members[straggler->node].name;
    status.straggler_excess = straggler->excess;
  }
  return status;
}

std::set<std::string> Run::stored_data() const {
  std::set<std::string> addresses(resume_files.begin(), resume_files.end());
  addresses.insert({submit.train_data, submit.test_data});
  for (const comm::Snapshot& snapshot : snapshots.stable())
    for (const comm::SnapshotFile& file : snapshot.files) addresses.insert(comm::to_text(file.content));
  return addresses;
}

std::set<std::string> Run::known_data() const {
  std::set<std::string> addresses = stored_data();
  for (const Snapshots::Unfinished& each : snapshots.unfinished())
    for (const comm::SnapshotFile& file : each.snapshot.files) addresses.insert(comm::to_text(file.content));
  return addresses;
}

// A watch counts for the key that watches, which may be an administrator's.
void Run::add_watcher(Pool& pool, const std::string& peer, const std::string& key) {
  if (watchers.emplace(peer, key).second) pool.accounts.change(key, {}, {.watches = 1});
}

void Run::remove_watcher(Pool& pool, const std::string& peer) {
  if (const auto watcher = watchers.extract(peer)) pool.accounts.change(watcher.mapped(), {.watches = 1}, {});
}

void Run::tell_watchers(Pool& pool) const {
  for (const auto& [watcher, key] : watchers) pool.send(watcher, status(pool.now));
}

}  // namespace modelet::scheduler
