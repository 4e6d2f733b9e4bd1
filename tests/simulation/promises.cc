#include "tests/simulation/promises.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

namespace modelet::simulation {
namespace {

constexpr double kSoon = 5;  // seconds for a few steps, and for files under way

uint64_t hash_of(const std::string& text) {
  uint64_t hash = text.size();
  for (const char c : text) hash = mix64(hash ^ static_cast<unsigned char>(c));
  return hash;
}

}  // namespace

// ---- the truth

uint64_t contribution(uint32_t modelet, uint64_t state) { return mix64(state ^ mix64(modelet + 1)); }
uint64_t next_modelet_state(uint64_t state, uint64_t total) { return mix64(state + 3 * total); }
uint64_t next_run_state(uint64_t state, uint64_t total) { return mix64(state ^ total); }

TrueState first_state(const std::string& run, size_t modelets) {
  TrueState state{.modelets = {}, .run = hash_of(run)};
  for (size_t i = 0; i < modelets; ++i) state.modelets.push_back(mix64(state.run + i));
  return state;
}

comm::ContentId content_of(uint64_t step, uint64_t file, uint64_t value) {
  const uint64_t words[4] = {value, step, file, mix64(value ^ step)};
  comm::ContentId content;
  std::memcpy(content.bytes.data(), words, sizeof(words));
  return content;
}

uint64_t value_in(const comm::ContentId& content) {
  uint64_t value = 0;
  std::memcpy(&value, content.bytes.data(), sizeof(value));
  return value;
}

std::string modelet_file(size_t modelet) { return fmt::format("modelet-{:05}.safetensors", modelet); }

const TrueState& Promises::truth(const std::string& run, uint64_t step) {
  std::vector<TrueState>& states = truths_.at(run);
  while (states.size() <= step) {
    TrueState next = states.back();
    uint64_t total = 0;
    for (uint32_t i = 0; i < next.modelets.size(); ++i) total += contribution(i, next.modelets[i]);
    for (uint64_t& state : next.modelets) state = next_modelet_state(state, total);
    next.run = next_run_state(next.run, total);
    states.push_back(std::move(next));
  }
  return states[step];
}

std::map<std::string, comm::ContentId> Promises::files_of(const std::string& run, uint64_t step) {
  const TrueState& state = truth(run, step);
  std::map<std::string, comm::ContentId> files{{kRunFile, content_of(step, kRunFileNumber, state.run)}};
  for (size_t i = 0; i < state.modelets.size(); ++i)
    files[modelet_file(i)] = content_of(step, i, state.modelets[i]);
  return files;
}

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

std::string Promises::lost_file(uint64_t run, uint64_t step) {
  for (const auto& [name, content] : files_of(names_.at(run), step)) {
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

void Promises::stepped(const std::string& run, uint64_t step, const std::map<uint32_t, uint64_t>& modelets,
                       uint64_t of_run) {
  const TrueState& right = truth(run, step);
  const bool agrees = right.run == of_run && std::ranges::all_of(modelets, [&](const auto& entry) {
                        return right.modelets[entry.first] == entry.second;
                      });
  if (!agrees) world_.violated(fmt::format("{}: the state after step {} is not the undisturbed run's", run, step));
}

void Promises::sent(const std::string& peer, const msg::FromSchedulerMessage& message) {
  if (const auto* prepare = std::get_if<msg::PrepareT>(&message)) check_prepare(peer, *prepare);
  if (const auto* stable = std::get_if<msg::StableT>(&message)) check_stable(*stable);
  if (const auto* accepted = std::get_if<msg::AcceptedT>(&message)) accepted_.insert(accepted->run);
}

// No two groups of a run have the same number, and later groups have larger ones.
void Promises::check_prepare(const std::string&, const msg::PrepareT& message) {
  names_[message.run] = message.name;
  auto& states = truths_[message.name];
  if (states.empty()) states.push_back(first_state(message.name, message.owner.size()));
  uint32_t& newest = epochs_[message.run];
  std::string text = message.snapshot + "|";
  for (const std::string& node : message.node_names) text += node + ",";
  for (const uint32_t rank : message.owner) text += std::to_string(rank) + ",";
  const auto [known, is_new] = groups_.insert({{message.run, message.epoch, message.rank}, text});
  if (known->second != text)
    world_.violated(fmt::format("run {}: two groups have the epoch {}", message.run, message.epoch));
  if (is_new && message.epoch < newest)
    world_.violated(fmt::format("run {}: epoch {} comes after epoch {}", message.run, message.epoch, newest));
  newest = message.epoch;
  sizes_[message.run] = message.size;
  if (std::ranges::any_of(message.owner, [&](uint32_t rank) { return rank >= message.size; }))
    world_.violated(fmt::format("run {}: a modelet is owned by nobody", message.run));
  if (!is_new || message.rank != 0) return;
  if (!message.snapshot.empty())
    check_snapshot(message.run, went_on_from_[message.run] = comm::parse_snapshot(message.snapshot));
  else if (stable_.contains(message.run))
    world_.violated(fmt::format("run {} begins anew although step {} is stable", message.run, stable_[message.run]));
}

void Promises::check_snapshot(uint64_t id, const comm::Snapshot& snapshot) {
  const std::string& run = names_.at(id);
  for (const auto& [name, content] : files_of(run, snapshot.step)) {
    const auto file = std::ranges::find(snapshot.files, name, &comm::SnapshotFile::name);
    if (file == snapshot.files.end()) return world_.violated(fmt::format("{}: {} is missing in the snapshot", run, name));
    if (file->content != content)
      return world_.violated(fmt::format("{}: {} of step {} is not the undisturbed run's", run, name, snapshot.step));
    const Copies counted = copies({id, content});
    if (counted.there == 0 && counted.removed > 0)
      return world_.violated(fmt::format("{}: {} of step {} is needed, and was removed", run, name, snapshot.step));
  }
}

// Disks that were destroyed without the scheduler knowing count as well: no scheduler could promise more.
void Promises::check_stable(const msg::StableT& message) {
  const std::string& run = names_.at(message.run);
  if (message.epoch != epochs_[message.run]) return;
  const size_t needed = std::min<size_t>(2, sizes_[message.run] + (has_store_ ? 1 : 0));
  uint64_t& stable = stable_[message.run];
  if (message.step <= stable) return;  // repeated
  stable = message.step;
  for (const auto& [name, content] : files_of(run, message.step)) {
    const Copies counted = copies({message.run, content});
    if (counted.there + counted.destroyed < needed)
      return world_.violated(fmt::format("{}: step {} is called stable, and {} lies on {} disks", run, message.step, name,
                                         counted.there));
  }
}

void Promises::persisted(const scheduler::Records& records) {
  for (const scheduler::RunEventRecord& event : records.events) check_event(event);
  for (const scheduler::RunRecord& run : records.runs) {
    if (ended_.contains(run.id) && !run.ended) world_.violated(fmt::format("run {} had ended and goes on", run.id));
    if (!run.ended || !ended_.insert(run.id).second) continue;
    check_stop(run.id);
    if (has_lost_files(run.id)) excused_.insert(run.id);
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
  for (const msg::RunStatusT& run : runs) accepted(run.name, run.run);
  for (const uint64_t id : accepted_)
    if (std::ranges::find(runs, id, &msg::RunStatusT::run) == runs.end())
      world_.violated(fmt::format("run {} was accepted and is forgotten", id));
}

void Promises::ended(const msg::RunStatusT& run, const std::vector<comm::Snapshot>& files, bool may_be_stopped) {
  const std::string what = fmt::format("run {} {} '{}'", run.run, EnumNameRunState(run.state), run.detail);
  if (run.state == msg::RunState::Stopped && may_be_stopped) {
    if (is_calm_ && run.stable_step < run.step) world_.violated(what + ": its last step is not safe");
    return;
  }
  if (run.state != msg::RunState::Finished) {
    if (!excused_.contains(run.run) && !has_lost_files(run.run)) world_.violated(what + ": nothing that was destroyed explains that");
    return;
  }
  const uint64_t steps = spec(run.name).steps;
  const auto last = std::ranges::find(files, steps, &comm::Snapshot::step);
  if (last == files.end()) return world_.violated(what + ": there are no files of its last step");
  check_snapshot(run.run, *last);
  for (const comm::SnapshotFile& file : last->files) {
    const auto found = copies_.find({run.run, file.content});
    const bool is_stored = found != copies_.end() && found->second.contains("") && found->second.at("") == Copy::kThere;
    if (has_store_ && !is_stored && lost_file(run.run, steps).empty())
      return world_.violated(fmt::format("{}: {} is not in the store", what, file.name));
  }
}

}  // namespace modelet::simulation
