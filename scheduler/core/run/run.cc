#include "scheduler/core/run/run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/experiment/towers.h"
#include "base/text/strict_json.h"
#include "scheduler/core/run/pool.h"
#include "scheduler/core/values/text.h"

namespace modelet::scheduler {

namespace msg = comm::control;
using msg::Outcome;
using msg::RunState;

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

Run::Run(uint64_t id, std::string submitter, msg::SubmitT submit, std::string submitted_at)
    : id_(id),
      submitter_(std::move(submitter)),
      submit_(std::move(submit)),
      submitted_at_(std::move(submitted_at)) {}

void Run::accept(Submission submission) {
  submission_ = std::move(submission);
  if (const uint32_t tasks = tower_tasks(submission_.experiment.model); tasks > 1)
    results_.resize(tasks);
  else if (!submission_.resume.empty())
    snapshots_ = Snapshots(std::exchange(submission_.resume, {}).front());
  submit_.resume_files.reset();  // the checked snapshots are those to begin from
  submit_.resume_tasks.clear();
}

void Run::begin(double now) {
  submitted_ += now;
  ended_ = stop_asked_ = last_news_ = stable_at_ = now;
}

// ---- what its nodes report

void Run::reported(Pool& pool, uint64_t node, const msg::RunEventT& event, std::string text) {
  using enum msg::EventKind;
  const Node& sender = pool.nodes.at(node);
  // The list of runs shows why a run does not begin yet.
  if (state_ == RunState::Forming && (event.kind == Preparing || event.kind == Fetching) &&
      is_measure(event.done))
    detail_ = fmt::format("node '{}' {} data: {:.0f} %", sender.info.name,
                          event.kind == Preparing ? "prepares" : "fetches", 100 * std::min(event.done, 1.0));
  if (state_ == RunState::Running && members().front().node == node) {
    // Heartbeats report the step too, but later.
    if (event.kind == Progress) step_ = std::max(step_, event.step);
    if (event.kind == Progress && is_measure(event.seconds_left)) {
      left_ = event.seconds_left;
      left_at_ = pool.now;
    }
    if (event.kind == Progress) note_progress(text);
    if (event.kind == Progress && !regroup_) observe(pool, event);
    if (event.kind == Interrupted && regroup_) return;  // watchers are not told, because the run goes on
  }
  if (event.kind == Trace) return journal_.pass_on(pool, {.run = id_, .text = std::move(text)});
  pass_on(pool, std::move(text), sender.info.incarnation, event.number);
}

std::string Run::trace(Pool& pool, uint32_t steps) const {
  if (!results_.empty()) return "it consists of tasks; trace one of those that modelet list shows below it";
  if (state_ != RunState::Running)
    return fmt::format("it is {}, and only a run that trains has steps", state_name(state_));
  return group_.trace(pool, id_, steps);
}

// What is shown of the run (docs/events.md). Nothing depends on it.
void Run::note_progress(const std::string& event) {
  const std::optional<nlohmann::json> object = parse_json_object(event);
  if (!object) return;
  const auto number = [&](const char* key) {
    const auto found = object->find(key);
    return found != object->end() && found->is_number() && is_measure(found->get<double>())
               ? found->get<double>()
               : 0.0;
  };
  progress_ = {static_cast<uint64_t>(std::min(number("steps"), 1e15)), number("loss"),
               number("samples_per_second"), number("bytes_sent_per_node_per_step")};
}

void Run::stepped(const std::string& node, uint64_t step) {
  step_ = std::max(step_, step);
  misses_.passed(node, step);
}

Holding Run::holding() const {
  constexpr uint64_t kOfRun = 4096, kOfFile = 512;
  const bool has_come_to_an_end = has_ended(state_);
  uint64_t files = snapshots_.files_of_start();
  for (const comm::Snapshot& of_task : submission_.resume) files += of_task.files.size();
  return {.runs = has_come_to_an_end || parent_ != 0 ? 0U : 1U,
          .bytes = kOfRun + 2 * submit_.experiment.size() + kOfFile * files + journal_.bytes(),
          .addresses = has_come_to_an_end ? 0 : files};
}

void Run::count(Pool& pool) {
  const Holding held = holding();
  pool.accounts.change(submitter_, counted_, held);
  counted_ = held;
}

void Run::shorten_log(Pool& pool) {
  journal_.shorten(pool, id_);
  forget_old_events(pool);
}

// The newest one stays.
void Run::forget_old_events(Pool& pool) {
  constexpr uint64_t kShareOfEnded = 4, kShareOfShort = 32;
  const CoreOptions& most = pool.options;
  const uint64_t most_bytes = most.max_run_event_bytes / (journal_.is_short() ? kShareOfShort
                                                          : has_ended(state_) ? kShareOfEnded
                                                                              : 1);
  const auto is_too_much = [&] {
    count(pool);
    return journal_.events().size() > most.max_run_events || journal_.bytes() > most_bytes ||
           (!submitter_.empty() && pool.accounts.of(submitter_).bytes > most.max_of_key.bytes) ||
           pool.accounts.all().bytes > most.max_bytes;
  };
  while (is_too_much() && journal_.forget_oldest()) continue;
}

void Run::restore_event(Pool& pool, const RunEventRecord& event) {
  journal_.restore(event);
  forget_old_events(pool);
}

void Run::publish(Pool& pool, nlohmann::json event) {
  if (std::string time = pool.utc(); !time.empty()) event["time"] = std::move(time);
  pass_on(pool, event.dump(), 0, 0);
}

// The event is kept as a line of text, so a client that asks later gets the same line.
void Run::pass_on(Pool& pool, std::string event, uint64_t agent, uint64_t number) {
  journal_.add(pool, {id_, 0, pool.utc(), std::move(event), agent, number});
  forget_old_events(pool);
}

void Run::member_done(Pool& pool, const Member& finished, const msg::RunDoneT& message) {
  if (has_ended(state_)) return pool.nodes.at(finished.node).release();
  group_.set_done(finished, message.outcome);
  step_ = std::max(step_, message.step);
  last_news_ = pool.now;
  pool.changed_runs.insert(id_);
  if (message.outcome != Outcome::Failed && state_ != RunState::Forming) return after_group(pool);
  if (message.retry && state_ == RunState::Recovering) return;  // another member reports the same loss
  const std::string why =
      fmt::format("node '{}' failed at step {}: {}", finished.name, step_, kept_text(message.message));
  const bool is_forming = state_ == RunState::Forming || state_ == RunState::Recovering;
  if (is_forming && has_run() && !message.retry) return not_prepared(pool, finished, why, message.user_error);
  constexpr uint32_t kFailuresInARow = 3;
  if (state_ == RunState::Forming && attempts_.failed(finished.name) >= kFailuresInARow &&
      can_do_without(pool, finished.name))
    leave_out(pool, finished.name, why);
  if (message.retry || message.outcome != Outcome::Failed)
    return state_ == RunState::Stopping ? stopped_by_loss(pool, why) : recover(pool, why);
  fail(pool, why, message.user_error);
}

void Run::node_gone(Pool& pool, uint64_t node, const std::string& name, const std::string& why) {
  if (has_ended(state_)) return;
  if (const Member* lost = member(node))
    return member_lost(pool, *lost, fmt::format("node '{}' {} at step {}", name, why, step_));
  if (!planning_.is_open() || planning_.is_for(Purpose::kGain)) return;
  // A node of the plan that is being made is gone, so another plan is needed.
  const bool goes_on = planning_.is_for(Purpose::kGoOn);
  planning_.forget(pool);
  if (goes_on) go_on(pool);
}

void Run::holder_gone(Pool& pool, const std::string& node) {
  if (snapshots_.holder_gone(node)) pool.changed_runs.insert(id_);
}

// ---- its end

// Decides what happens once all members have ended.
void Run::after_group(Pool& pool) {
  if ((state_ != RunState::Running && state_ != RunState::Stopping) || planning_.is_for(Purpose::kGoOn) ||
      !group_.are_all_done())
    return;
  const bool all_ok =
      std::ranges::all_of(members(), [](const Member& each) { return each.outcome == Outcome::Ok; });
  if (all_ok || state_ == RunState::Stopping) return end_with_files(pool, all_ok);
  const bool is_stable = snapshots_.newest() != nullptr && snapshots_.stable_step() >= step_;
  if (!is_stable && !can_be_moved(pool) && pool.now - last_news_ <= pool.options.stop_grace) {
    detail_ = fmt::format("brings the files of step {} to safety", step_);
    return;
  }
  if (!regroup_) return recover(pool, "its group stopped by itself");
  if (regroup_->reason == Reason::kSlow) publish_replanned(pool);
  go_on(pool);
}

void Run::publish_replanned(Pool& pool) {
  ++replans_;
  publish(pool, {{"event", "replanned"},
                 {"node", regroup_->slow_node},
                 {"slower", regroup_->slower},
                 {"moved_modelets", regroup_->moved_modelets},
                 {"gain", regroup_->gain},
                 {"step", step_}});
}

// All members have ended well, or as they were asked to. The run has ended only once the files of its last
// step are safe: until then the loss of a node can still lose files that the user wants.
void Run::end_with_files(Pool& pool, bool all_ok) {
  const bool is_stable = snapshots_.newest() != nullptr && snapshots_.stable_step() >= step_;
  if (!has_last_files(pool) && pool.now - last_news_ <= pool.options.hold_grace) {
    detail_ = fmt::format("brings the files of step {} to safety", step_);
  } else if (!all_ok) {
    set_state(pool, RunState::Stopped,
              fmt::format("stopped at step {}{}", step_,
                          is_stable ? ", checkpoint written" : "; " + where_it_stands()));
  } else if (is_stable) {
    set_state(pool, RunState::Finished,
              has_last_files(pool) ? "" : "its files could not be brought to the scheduler's store");
  } else {  // its last steps are computed again
    recover(pool, fmt::format("its nodes did not bring the files of step {} to safety within {:.0f} s", step_,
                              pool.options.hold_grace));
  }
}

std::string Run::where_it_stands() const {
  if (snapshots_.newest() == nullptr) return "nothing was saved";
  return fmt::format("its files are those of step {}", snapshots_.stable_step());
}

void Run::asked_to_stop(Pool& pool) {
  if (!results_.empty()) {
    if (has_ended(state_)) return;
    stop_asked_ = pool.now;
    set_state(pool, RunState::Stopping, "asks its tasks to stop");
    for (auto& [id, run] : pool.runs)
      if (run.parent_ == id_) run.asked_to_stop(pool);
    return;
  }
  const std::string between =
      fmt::format("stopped at step {} while its modelets were placed anew, checkpoint written", step_);
  if (state_ == RunState::Queued) {
    set_state(pool, RunState::Stopped, "stopped while it waited");
  } else if (state_ == RunState::Recovering || state_ == RunState::Waiting ||
             (state_ == RunState::Forming && recoveries_ > 0)) {
    stopped_by_loss(pool, "stopped while its group was formed anew");
  } else if (state_ == RunState::Forming) {
    group_.abort(pool, id_, "the run was stopped");
    set_state(pool, RunState::Stopped, epoch() == 1 ? "stopped before its first step" : between);
  } else if (state_ == RunState::Running && planning_.is_for(Purpose::kGoOn)) {
    set_state(pool, RunState::Stopped, between);
  } else if (state_ == RunState::Running) {
    stop_to_end(pool, "asked to stop at the next step");
  }
}

void Run::stop_to_end(Pool& pool, const std::string& why) {
  stop_asked_ = pool.now;
  planning_.forget(pool);
  regroup_.reset();
  group_.stop(pool, id_);
  set_state(pool, RunState::Stopping, why);
  after_group(pool);
}

void Run::fail(Pool& pool, const std::string& why, bool by_user) {
  user_error_ = by_user;
  group_.abort(pool, id_, why);
  set_state(pool, RunState::Failed, why);
}

void Run::set_state(Pool& pool, RunState to, const std::string& why) {
  MODELET_CHECK(!has_ended(state_), "a run that has ended changes no more");
  state_ = to;
  detail_ = why;
  pool.changed_runs.insert(id_);
  if (has_ended(to)) {
    ended_ = pool.now;
    regroup_.reset();
    planning_.forget(pool);
    group_.release_done(pool, id_);  // those that were kept for a new plan
  }
  pool.log(
      fmt::format("run {} '{}' {}{}{}", id_, submit_.name, state_name(to), why.empty() ? "" : ": ", why));
  notify_watchers(pool);
  if (!has_ended(to)) return;
  journal_.remove_watchers(pool);
  // Who submitted it has the start. A run that had nothing left to do ends with it.
  if (to != RunState::Finished || snapshots_.has_own()) snapshots_.forget_start();
  // Nobody looks for the cause of an end that is no failure in the events of one of many tasks.
  if (parent_ != 0 && to != RunState::Failed) journal_.shorten(pool, id_);
  forget_old_events(pool);
  pool.shorten_old_logs(submitter_);
}

// ---- what it says

msg::RunStatusT Run::status(double now) const {
  msg::RunStatusT status;
  status.run = id_;
  status.name = submit_.name;
  status.submitter = submitter_;
  status.state = state_;
  status.detail = detail_;
  status.step = step_;
  if (state_ != RunState::Waiting)
    for (const Member& each : members()) status.node_names.push_back(each.name);
  status.seconds = (has_ended(state_) ? ended_ : now) - submitted_;
  status.replans = replans_;
  status.user_error = user_error_;
  status.epoch = epoch();
  status.stable_step = snapshots_.stable_step();
  status.recoveries = recoveries_;
  status.submitted = submitted_at_;
  status.parent = parent_;
  status.task = task_;
  status.steps = progress_.steps;
  status.loss = progress_.loss;
  status.bytes_per_step = progress_.bytes_per_step;
  if (state_ == RunState::Running) {
    status.samples_per_second = progress_.samples_per_second;
    status.seconds_left = std::max(0.0, seconds_left(now));
  }
  if (status.stable_step > 0 && !has_ended(state_)) status.stable_seconds = now - stable_at_;
  status.repeated_steps = repeated_steps_;
  if (is_waiting()) status.queue_place = queue_place_;
  if (!results_.empty()) {
    status.tasks = static_cast<uint32_t>(results_.size());
    status.tasks_done = tally_.done;
    status.tasks_at_work = tally_.at_work;
    status.seconds_left = tally_.seconds_left;
    status.node_names = tally_.nodes;
  }
  if (const auto straggler = find_straggler(balance_.latest());
      straggler && straggler->excess >= kNotableExcess && !has_ended(state_)) {
    status.straggler = members()[straggler->node].name;
    status.straggler_excess = straggler->excess;
  }
  return status;
}

std::vector<Run::Share> Run::placement() const {
  std::vector<Share> shares;
  if (state_ == RunState::Waiting || has_ended(state_)) return shares;
  for (const Member& each : members()) shares.push_back({each.name, 0, each.planned_bytes});
  for (const uint32_t rank : group_.owner())
    if (rank < shares.size()) ++shares[rank].modelets;
  return shares;
}

std::set<std::string> Run::stored_data() const {
  std::set<std::string> addresses{submit_.train_data, submit_.test_data};
  if (!submit_.division.empty()) addresses.insert(submit_.division);
  for (const comm::Snapshot& snapshot : snapshots_.stable()) addresses.merge(addresses_of(snapshot));
  return addresses;
}

std::set<std::string> Run::known_data() const {
  std::set<std::string> addresses = stored_data();
  for (const Snapshots::Unfinished& each : snapshots_.unfinished())
    addresses.merge(addresses_of(each.snapshot));
  return addresses;
}

void Run::notify_watchers(Pool& pool) const {
  if (journal_.is_watched()) journal_.notify_watchers(pool, status(pool.now));
}

}  // namespace modelet::scheduler
