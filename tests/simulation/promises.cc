#include "tests/simulation/promises.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace modelet::simulation {
namespace {

constexpr double kSoon = 5;  // seconds for a few steps, and for files under way
constexpr uint32_t kOutOfTurn = 1;  // nodes by which runs whose tasks take turns may differ

}  // namespace

// ---- disks

// A group that goes on from an earlier step writes the same files again. That others removed theirs before does
// not count then.
void Promises::written(const std::string& node, uint64_t run, const comm::ContentId& content) {
  auto& copies = copies_[{run, content}];
  std::erase_if(copies, [](const auto& copy) { return copy.second == Copy::kRemoved; });
  copies[node] = Copy::kThere;
}
void Promises::removed(const std::string& node, uint64_t run, const comm::ContentId& content) {
  copies_[{run, content}][node] = Copy::kRemoved;
}
void Promises::destroyed(const std::string& node, uint64_t run, const comm::ContentId& content) {
  copies_[{run, content}][node] = Copy::kDestroyed;
}
void Promises::given_away(const std::string& node, uint64_t run, const comm::ContentId& content) {
  !has_store_ && ended_.contains(run) ? destroyed(node, run, content) : removed(node, run, content);
}
void Promises::announced(const std::string& node) {
  for (auto& [content, disks] : copies_)
    if (const auto found = disks.find(node); found != disks.end() && found->second == Copy::kDestroyed)
      found->second = Copy::kAnnounced;
}

void Promises::returned(const std::string& node) {
  for (auto& [content, disks] : copies_)
    if (const auto found = disks.find(node); found != disks.end() && found->second == Copy::kAnnounced)
      found->second = Copy::kDestroyed;
}

Promises::Copies Promises::copies(const Content& content) const {
  Copies counted;
  if (const auto found = copies_.find(content); found != copies_.end())
    for (const auto& [node, copy] : found->second) {
      counted.there += copy == Copy::kThere;
      counted.removed += copy == Copy::kRemoved;
      counted.destroyed += copy == Copy::kDestroyed;
    }
  return counted;
}

std::string Promises::lost_file(uint64_t run, Made snapshot) {
  for (const auto& [name, content] : workload_.files(run, snapshot.epoch, snapshot.step)) {
    const Copies counted = copies({run, content});
    if (counted.there == 0 && counted.removed == 0) return name;
  }
  return "";
}

bool Promises::has_lost_files(uint64_t run) {
  if (stable_.contains(run) && !lost_file(run, stable_[run]).empty()) return true;
  const auto is_destroyed = [this, run](const comm::SnapshotFile& file) {
    auto& copies = copies_[{run, file.content}];
    return (!copies.contains("") || copies[""] != Copy::kThere) && !file.holders.empty() &&
           std::ranges::all_of(file.holders, [&](const std::string& holder) {
             const auto copy = copies.find(holder);
             return copy != copies.end() && (copy->second == Copy::kDestroyed || copy->second == Copy::kAnnounced);
           });
  };
  return std::ranges::any_of(went_on_from_[run].files, is_destroyed);
}

// ---- what happens

void Promises::sent(const std::string& peer, const msg::FromSchedulerMessage& message) {
  if (const auto* prepare = std::get_if<msg::PrepareT>(&message)) check_prepare(peer, *prepare);
  if (const auto* stable = std::get_if<msg::StableT>(&message)) check_stable(*stable);
  if (const auto* accepted = std::get_if<msg::AcceptedT>(&message)) accepted_.insert(accepted->run);
}

// No two groups of a run have the same number, and later groups have larger ones.
void Promises::check_prepare(const std::string&, const msg::PrepareT& message) {
  names_[message.run] = message.name;
  uint32_t& newest = epochs_[message.run];
  std::string text = message.snapshot == nullptr ? "|" : format_snapshot(msg::snapshot_of(*message.snapshot)) + "|";
  for (const std::string& node : message.node_names) text += node + ",";
  for (const uint32_t rank : message.owner) text += std::to_string(rank) + ",";
  const auto [known, is_new] = groups_.insert({{message.run, message.epoch, message.rank}, text});
  if (known->second != text)
    world_.violated(fmt::format("run {}: two groups have the epoch {}", message.run, message.epoch));
  if (is_new && message.epoch < newest)
    world_.violated(fmt::format("run {}: epoch {} comes after epoch {}", message.run, message.epoch, newest));
  if (is_new) workload_.prepared(message);
  newest = message.epoch;
  sizes_[message.run] = message.size;
  if (std::ranges::any_of(message.owner, [&](uint32_t rank) { return rank >= message.size; }))
    world_.violated(fmt::format("run {}: a modelet is owned by nobody", message.run));
  if (!is_new || message.rank != 0) return;
  if (message.snapshot != nullptr)
    check_snapshot(message.run, went_on_from_[message.run] = msg::snapshot_of(*message.snapshot));
  else if (stable_.contains(message.run))
    world_.violated(fmt::format("run {} begins anew although step {} is stable", message.run, stable_[message.run].step));
}

void Promises::check_snapshot(uint64_t id, const comm::Snapshot& snapshot) {
  const std::string& run = names_.at(id);
  for (const auto& [name, content] : workload_.files(id, snapshot.epoch, snapshot.step)) {
    const auto file = std::ranges::find(snapshot.files, name, &comm::SnapshotFile::name);
    if (file == snapshot.files.end()) return world_.violated(fmt::format("{}: {} is missing in the snapshot", run, name));
    if (file->content != content)
      return world_.violated(fmt::format("{}: {} of step {} is not the undisturbed run's", run, name, snapshot.step));
    const auto& disks = copies_[{id, content}];
    const bool is_removed = std::ranges::any_of(file->holders, [&](const std::string& holder) {  // that were known
      const auto copy = disks.find(holder);
      return copy != disks.end() && copy->second == Copy::kRemoved;
    });
    if (copies({id, content}).there == 0 && is_removed)
      return world_.violated(fmt::format("{}: {} of step {} is needed, and was removed", run, name, snapshot.step));
  }
}

// Disks that were destroyed without the scheduler knowing count as well: no scheduler could promise more.
void Promises::check_stable(const msg::StableT& message) {
  const std::string& run = names_.at(message.run);
  if (message.epoch != epochs_[message.run]) return;
  const size_t needed = std::min<size_t>(2, sizes_[message.run] + (has_store_ ? 1 : 0));
  Made& stable = stable_[message.run];
  if (message.step <= stable.step) return;  // repeated
  stable = {message.epoch, message.step};
  for (const auto& [name, content] : workload_.files(message.run, message.epoch, message.step)) {
    const Copies counted = copies({message.run, content});
    if (counted.there + counted.destroyed < needed)
      return world_.violated(fmt::format("{}: step {} is called stable, and {} lies on {} disks", run, message.step, name,
                                         counted.there));
  }
}

void Promises::persisted(const scheduler::Records& records) {
  for (const scheduler::RunEventRecord& event : records.events) check_event(event);
  for (const scheduler::RunRecord& run : records.runs) {
    const auto text = nlohmann::json::parse(run.text);
    const bool has_ended = scheduler::has_ended(static_cast<msg::RunState>(text.at("state").get<int>()));
    if (!run.submission.empty()) limits_[run.id] = nlohmann::json::parse(run.submission).at("nodes");
    if (text.contains("parent")) parents_[run.id] = text.at("parent");
    if (text.contains("results")) check_results(run.id, text.at("results"));
    if (ended_.contains(run.id) && !has_ended) world_.violated(fmt::format("run {} had ended and goes on", run.id));
    if (!has_ended || !ended_.insert(run.id).second) continue;
    if (is_calm_ && parents_.contains(run.id)) task_ends_[run.id] = world_.now();
    check_stop(run.id);
    if (has_lost_files(run.id)) excused_.insert(run.id);
  }
}

// A result is that of the right task, and stays.
void Promises::check_results(uint64_t run, const std::vector<uint64_t>& results) {
  std::vector<uint64_t>& known = results_[run];
  known.resize(results.size());
  for (size_t task = 0; task < results.size(); ++task) {
    if (known[task] != 0 && known[task] != results[task])
      world_.violated(fmt::format("run {}: the result of task {} was run {}, and is run {}", run, task, known[task],
                                  results[task]));
    known[task] = results[task];
    if (const std::string suffix = fmt::format(".{:03}", task); results[task] != 0 && !names_[results[task]].ends_with(suffix))
      world_.violated(fmt::format("run {}: the result of task {} is '{}'", run, task, names_[results[task]]));
  }
}

void Promises::stepped(uint64_t run) {
  if (const auto end = task_ends_.find(run); end != task_ends_.end() && world_.now() - end->second > kSoon)
    world_.violated(fmt::format("a node works for run {}, a task that has ended", run));
}

// Called every second. While tasks of another run wait, none of a run begins that has notably more nodes.
void Promises::check_turns(const std::vector<msg::RunStatusT>& runs) {
  for (const msg::RunStatusT& run : runs) {
    if (run.tasks == 0) continue;
    const bool goes_on = run.state == msg::RunState::Queued || run.state == msg::RunState::Running;
    const bool waits = goes_on && run.tasks_done + run.tasks_at_work < run.tasks;
    if (!waits) waits_since_.erase(run.run);
    if (waits) waits_since_.insert({run.run, world_.now()});
  }
  for (const msg::RunStatusT& run : runs) {
    if (run.tasks == 0) continue;
    const uint32_t begun = run.tasks_done + run.tasks_at_work, before = std::exchange(begun_[run.run], begun);
    if (is_disturbed_ || begun <= before) continue;
    for (const msg::RunStatusT& other : runs)
      if (const auto since = waits_since_.find(other.run);
          other.run != run.run && since != waits_since_.end() && world_.now() - since->second > 2 &&
          run.tasks_at_work > other.tasks_at_work + kOutOfTurn && limits_[other.run] == 0)
        world_.violated(fmt::format("run {} has {} nodes and gets more, while run {} has {} and waits", run.run,
                                    run.tasks_at_work, other.run, other.tasks_at_work));
  }
}

void Promises::asked_to_stop(uint64_t run) {
  if (is_calm_ && !ended_.contains(run)) stops_.insert({run, world_.now()});
}

void Promises::check_stop(uint64_t run) {
  const auto asked = stops_.find(run);
  if (asked != stops_.end() && world_.now() - asked->second > kSoon)
    world_.violated(fmt::format("run {} ends {:.1f} s after it was stopped", run, world_.now() - asked->second));
}

// Finds an event that was published twice, or by a group that has been replaced.
void Promises::check_event(const scheduler::RunEventRecord& event) {
  uint64_t& last = events_[event.run];
  if (event.number <= last) world_.violated(fmt::format("run {}: event {} comes again", event.run, event.number));
  last = event.number;
  const auto json = nlohmann::json::parse(event.text);
  if (json.value("event", "") != "progress") return;
  const std::pair<uint64_t, uint64_t> place{json.at("group").get<uint64_t>(), json.at("step").get<uint64_t>()};
  auto& published = published_[event.run];
  if (place <= published)
    world_.violated(fmt::format("run {}: step {} of epoch {} is published after step {} of epoch {}", event.run,
                                place.second, place.first, published.second, published.first));
  published = place;
}

void Promises::accepted(const std::string& run, uint64_t number) {
  const auto known = numbers_.insert({run, number}).first;
  if (known->second != number) world_.violated(fmt::format("runs {} and {} are one submission", known->second, number));
  if (named_.insert({number, run}).first->second != run)
    world_.violated(fmt::format("two runs have the number {}", number));
}

void Promises::running(const std::vector<msg::RunStatusT>& runs) {
  check_turns(runs);
  for (const msg::RunStatusT& run : runs)
    if (run.parent == 0) accepted(run.name, run.run);
  for (const uint64_t id : accepted_)
    if (std::ranges::find(runs, id, &msg::RunStatusT::run) == runs.end())
      world_.violated(fmt::format("run {} was accepted and is forgotten", id));
}

void Promises::ended(const msg::RunStatusT& run, const std::vector<comm::Snapshot>& files, bool may_be_stopped) {
  const std::string what = fmt::format("run {} {} '{}'", run.run, EnumNameRunState(run.state), run.detail);
  // A task that another copy was faster with, or whose run has failed.
  const bool is_given_up = run.parent != 0 && run.state == msg::RunState::Stopped;
  if (run.state == msg::RunState::Stopped && (may_be_stopped || is_given_up)) {
    if (is_calm_ && may_be_stopped && run.detail.starts_with("stopped at") && run.stable_step < run.step) world_.violated(what + ": its last step is not safe");
    return;
  }
  if (run.state != msg::RunState::Finished) {
    const bool is_excused = std::ranges::any_of(
        parents_, [&](const auto& each) { return each.second == run.run && excused_.contains(each.first); });
    if (!is_excused && !excused_.contains(run.run) && !has_lost_files(run.run)) world_.violated(what + ": nothing that was destroyed explains that");
    return;
  }
  if (run.tasks > 0) {
    if (std::ranges::count(results_[run.run], uint64_t{0}) > 0) world_.violated(what + ": a task has no result");
    return;
  }
  const uint64_t steps = spec(run.name).steps;
  const auto last = std::ranges::find(files, steps, &comm::Snapshot::step);
  if (last == files.end()) return world_.violated(what + ": there are no files of its last step");
  check_snapshot(run.run, *last);
  for (const comm::SnapshotFile& file : last->files) {
    const auto found = copies_.find({run.run, file.content});
    const bool is_stored = found != copies_.end() && found->second.contains("") && found->second.at("") == Copy::kThere;
    if (has_store_ && !is_stored && lost_file(run.run, {last->epoch, last->step}).empty())
      return world_.violated(fmt::format("{}: {} is not in the store", what, file.name));
  }
}

}  // namespace modelet::simulation
