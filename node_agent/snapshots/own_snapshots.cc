#include "node_agent/snapshots/own_snapshots.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "comm/control/snapshot_tables.h"
#include "node_agent/snapshots/holder_order.h"

namespace modelet::agent {
namespace {

constexpr double kAvoid = 30;          // seconds during which a node that did not take a file is asked last
constexpr uint64_t kLongestRest = 16;  // times retry_seconds
constexpr size_t kMostWaiting = 2;  // snapshots that may wait for the scheduler's store: each takes room here

bool is_in_store(const HeldFile& file) { return std::ranges::find(file.holders, "") != file.holders.end(); }

}  // namespace

void OwnSnapshots::begin(const Group& group) {
  const bool same_pool = group.pool == group_.pool;
  const bool same_run = same_pool && group.run == group_.run;
  // What an earlier group of this run wrote after the step that this group goes on from is not this group's,
  // even if the node has worked for another run meanwhile: reported in this group's name, the part of one rank
  // would pass for the whole snapshot. Of other runs, only snapshots that must still get to the scheduler's
  // store are kept here. The files of the rest stay until their room is needed: such a run may go on without
  // this node.
  std::erase_if(snapshots_, [&](const Snapshot& snapshot) {
    const bool stays = same_pool && snapshot.run == group.run
                           ? snapshot.step <= group.from_step && (snapshot.is_held() || snapshot.keep)
                           : same_pool && wants_store(snapshot);
    if (!stays && snapshot.run == group.run) forget(snapshot, false);
    return !stays;
  });
  if (same_run)
    held_steps_.erase(held_steps_.upper_bound(group.from_step), held_steps_.end());
  else
    held_steps_.clear();
  group_ = group;
  failed_at_.clear();
  for (Snapshot& snapshot : snapshots_) {
    snapshot.retry_at = 0;
    snapshot.refused.clear();
    snapshot.complaints.clear();
    snapshot.is_suspect = false;
    if (snapshot.run != group.run) continue;
    snapshot.epoch = group.epoch;
    snapshot.rank = group.rank;
  }
}

void OwnSnapshots::take(uint64_t step, bool keep, std::filesystem::path folder,
                        std::vector<std::string> files) {
  if (files.size() > comm::kMostSnapshotFiles)
    return around_.warn(
        fmt::format("the snapshot of step {} has {} files, more than {}: it is not kept elsewhere", step,
                    files.size(), comm::kMostSnapshotFiles));
  snapshots_.push_back({.number = ++numbers_,
                        .run = group_.run,
                        .epoch = group_.epoch,
                        .rank = group_.rank,
                        .step = step,
                        .keep = keep,
                        .folder = std::move(folder),
                        .names = std::move(files)});
  drop_superseded();
}

void OwnSnapshots::brought(uint64_t run, uint64_t step, bool keep, std::filesystem::path folder,
                           std::vector<HeldFile> files) {
  if (run != group_.run) return;
  Snapshot snapshot{.number = ++numbers_,
                    .run = run,
                    .epoch = group_.epoch,
                    .rank = group_.rank,
                    .step = step,
                    .keep = keep,
                    .folder = std::move(folder)};
  for (HeldFile& file : files) {
    // The scheduler named them, but some of the nodes may be gone by now. One of these may be the rank that
    // would have sent the file to the store.
    std::erase_if(file.holders, [](const std::string& holder) { return !holder.empty(); });
    snapshot.names.push_back(file.name);
    snapshot.files.push_back(std::move(file));
  }
  mark_held(snapshot);
  snapshots_.push_front(std::move(snapshot));
}

void OwnSnapshots::stable(uint64_t run, uint64_t step) {
  if (run != group_.run) return;
  std::erase_if(snapshots_, [&](const Snapshot& snapshot) {
    if (snapshot.run != run || snapshot.step >= step) return false;
    if (snapshot.keep && wants_store(snapshot)) return false;
    forget(snapshot, true);
    return true;
  });
}

// Files that the user wants stay in the run's folder: the trainer decides about them.
void OwnSnapshots::forget(const Snapshot& snapshot, bool with_folder) {
  Forgotten forgotten;
  for (const HeldFile& file : snapshot.files) forgotten.contents.push_back(file.content);
  if (with_folder && !snapshot.keep) {
    forgotten.folder = snapshot.folder;
    forgotten.names = snapshot.names;
  }
  forgotten_.push_back(std::move(forgotten));
}

std::set<comm::ContentId> OwnSnapshots::contents() const {
  std::set<comm::ContentId> contents;
  for (const Snapshot& snapshot : snapshots_)
    for (const HeldFile& file : snapshot.files) contents.insert(file.content);
  return contents;
}

// Snapshots that are to be kept go to the scheduler's store, if it has one, and so does the last one of a node that
// leaves.
bool OwnSnapshots::wants_store(const Snapshot& snapshot) const {
  const bool is_wanted = snapshot.keep || (leaves_ && is_newest(snapshot));
  return is_wanted && !snapshot.is_stored && group_.has_store;
}

bool OwnSnapshots::is_newest(const Snapshot& snapshot) const {
  return std::ranges::none_of(snapshots_, [&](const Snapshot& other) {
    return other.run == snapshot.run && other.step > snapshot.step;
  });
}

bool OwnSnapshots::is_due(const Snapshot& snapshot, double now) const {
  return (!snapshot.is_held() || wants_store(snapshot)) && now >= snapshot.retry_at;
}

bool OwnSnapshots::has_work(double now) const {
  return std::ranges::any_of(snapshots_, [&](const Snapshot& snapshot) { return is_due(snapshot, now); });
}

bool OwnSnapshots::is_sending() const {
  return std::ranges::any_of(snapshots_, [this](const Snapshot& snapshot) {
    // For what only goes to the store because this node leaves, the scheduler waits if it needs it (Released).
    return snapshot.failures == 0 && (!snapshot.is_held() || (snapshot.keep && wants_store(snapshot)));
  });
}

// What the run needs comes before what the user wants.
OwnSnapshots::Snapshot* OwnSnapshots::next_due(double now) {
  for (const bool held : {false, true})
    for (Snapshot& snapshot : snapshots_)
      if (is_due(snapshot, now) && snapshot.is_held() == held) return &snapshot;
  return nullptr;
}

OwnSnapshots::Snapshot* OwnSnapshots::find(uint64_t number) {
  const auto found = std::ranges::find(snapshots_, number, &Snapshot::number);
  return found == snapshots_.end() ? nullptr : &*found;
}

// ---- tasks

std::optional<OwnSnapshots::Task> OwnSnapshots::next(double now) {
  while (Snapshot* due = next_due(now))
    if (auto task = task_of(*due, now)) return task;
  return std::nullopt;
}

// Nothing if the snapshot is done, or cannot be done now: then it is not due any more.
std::optional<OwnSnapshots::Task> OwnSnapshots::task_of(Snapshot& snapshot, double now) {
  if (snapshot.files.size() < snapshot.names.size())
    return Adopt{snapshot.number, snapshot.folder, snapshot.names[snapshot.files.size()]};
  // This may be the end of a group. The next group may go on from these files before other nodes have them.
  if (snapshot.stage == Stage::kWritten && snapshot.keep) {
    snapshot.stage = Stage::kReported;
    report(snapshot);
  }
  const auto is_missing = [&](const HeldFile& file) {
    return snapshot.is_held() ? !is_in_store(file) : file.holders.empty() && !is_alone();
  };
  const auto missing = std::ranges::find_if(snapshot.files, is_missing);
  if (missing != snapshot.files.end()) {
    if (std::exchange(snapshot.is_suspect, false))
      return Repair{snapshot.number, snapshot.run, snapshot.step, *missing};
    return send(snapshot, *missing, now);
  }
  mark_held(snapshot);
  return std::nullopt;
}

std::optional<OwnSnapshots::Task> OwnSnapshots::send(Snapshot& snapshot, const HeldFile& file, double now) {
  for (const std::string& node : candidates(snapshot, now))
    if (!snapshot.refused.contains(node))
      return Send{snapshot.number, snapshot.run, snapshot.step, file, node};
  fail(snapshot, now,
       file.name + ": " +
           (snapshot.refused.empty() ? "no other node of the group holds files" : snapshot.complaints));
  return std::nullopt;
}

// Whether nobody else can hold this node's files.
bool OwnSnapshots::is_alone() const { return group_.members.size() <= 1 && !group_.has_store; }

// The nodes to which a file may go. If the scheduler's store is on this machine, or if the file is held
// already, only the store. Else the other members, beginning with the partner, and last those that failed a
// moment ago. Finally the store, for a group of one and in case no member takes the file.
std::vector<std::string> OwnSnapshots::candidates(const Snapshot& snapshot, double now) const {
  if (snapshot.is_held() || (around_.store_is_here && group_.has_store)) return {""};
  std::vector<std::string> nodes;
  for (const uint32_t rank : holder_order(group_.rank, static_cast<uint32_t>(group_.members.size())))
    if (const std::string& node = group_.members[rank]; group_.holders.contains(node)) nodes.push_back(node);
  const auto has_not_failed = [&](const std::string& node) {
    const auto failed = failed_at_.find(node);
    return failed == failed_at_.end() || now - failed->second > kAvoid;
  };
  std::stable_partition(nodes.begin(), nodes.end(), has_not_failed);
  if (group_.has_store) nodes.emplace_back();
  return nodes;
}

// ---- how tasks ended; a snapshot may have been dropped meanwhile

void OwnSnapshots::adopted(const Adopt& task, HeldFile file) {
  Snapshot* snapshot = find(task.snapshot);
  if (snapshot != nullptr && snapshot->files.size() < snapshot->names.size() &&
      snapshot->names[snapshot->files.size()] == file.name)
    snapshot->files.push_back(std::move(file));
}

void OwnSnapshots::sent(const Send& task) {
  Snapshot* snapshot = find(task.snapshot);
  if (snapshot == nullptr) return;
  const auto file = std::ranges::find(snapshot->files, task.file.name, &HeldFile::name);
  if (std::ranges::find(file->holders, task.to) == file->holders.end()) file->holders.push_back(task.to);
  snapshot->refused.clear();
  snapshot->complaints.clear();
  snapshot->failures = 0;  // the next file that fails is looked at as soon as this one was
}

void OwnSnapshots::failed(double now, const Task& task, const std::string& why) {
  Snapshot* snapshot = find(std::visit([](const auto& any) { return any.snapshot; }, task));
  if (snapshot == nullptr) return;
  if (const auto* send = std::get_if<Send>(&task)) {
    failed_at_[send->to] = now;
    snapshot->refused.insert(send->to);  // the next candidate's turn
    snapshot->complaints += fmt::format("{}{}", snapshot->complaints.empty() ? "" : "; ", why);
  } else {
    fail(*snapshot, now, why);
  }
}

void OwnSnapshots::could_not_read(double now, const Send& task, const std::string& why) {
  if (Snapshot* snapshot = find(task.snapshot); snapshot != nullptr) fail(*snapshot, now, why);
}

void OwnSnapshots::fail(Snapshot& snapshot, double now, const std::string& why) {
  if (++snapshot.failures == 1)
    around_.warn(
        fmt::format("the snapshot of step {} is not safe yet, it is tried again: {}", snapshot.step, why));
  snapshot.retry_at =
      now + around_.retry_seconds * static_cast<double>(std::min(snapshot.failures, kLongestRest));
  snapshot.refused.clear();
  snapshot.complaints.clear();
  snapshot.is_suspect =
      snapshot.is_held() && std::has_single_bit(snapshot.failures);  // rarely: all of it is read
  drop_superseded();
}

// Drops two kinds of snapshots: one that failed or was not begun, if there is a newer one; and the oldest
// that waits for the store, if too many do, because the user wants the newest.
void OwnSnapshots::drop_superseded() {
  uint64_t newest = 0;
  for (const Snapshot& snapshot : snapshots_)
    if (snapshot.run == group_.run) newest = std::max(newest, snapshot.step);
  std::erase_if(snapshots_, [&](const Snapshot& snapshot) {
    const bool superseded = !snapshot.is_held() && !snapshot.keep && snapshot.run == group_.run &&
                            snapshot.step < newest && (snapshot.failures > 0 || snapshot.files.empty());
    if (!superseded) return false;
    around_.warn(fmt::format("the snapshot of step {} is left out: there is a newer one", snapshot.step));
    forget(snapshot, true);
    return true;
  });
  // What was written and what was brought of one snapshot wait together.
  using Key = std::pair<uint64_t, uint64_t>;  // run and step
  const auto key = [](const Snapshot& snapshot) { return Key(snapshot.run, snapshot.step); };
  std::map<Key, uint64_t> waiting;  // -> the smallest number
  for (const Snapshot& snapshot : snapshots_) {
    if (!wants_store(snapshot)) continue;
    uint64_t& number = waiting.try_emplace(key(snapshot), snapshot.number).first->second;
    number = std::min(number, snapshot.number);
  }
  if (waiting.size() <= kMostWaiting) return;
  const Key oldest = std::ranges::min_element(waiting, {}, &std::pair<const Key, uint64_t>::second)->first;
  for (Snapshot& snapshot : snapshots_) {
    if (key(snapshot) != oldest || !wants_store(snapshot)) continue;
    around_.warn(
        fmt::format("the scheduler's store did not take the snapshot of step {}: it stays in {} only",
                    snapshot.step, snapshot.folder.string()));
    snapshot.is_stored = true;  // the run may need it, so it stays until a newer one is stable
  }
}

// ---- reports

void OwnSnapshots::mark_held(Snapshot& snapshot) {
  snapshot.stage = Stage::kHeld;
  snapshot.is_stored = snapshot.is_stored || std::ranges::all_of(snapshot.files, is_in_store);
  if (snapshot.run == group_.run) held_steps_.insert(snapshot.step);
  report(snapshot);
}

void OwnSnapshots::report(const Snapshot& snapshot) {
  std::vector<comm::SnapshotFile> files;
  for (const HeldFile& file : snapshot.files) {
    files.push_back({file.name, file.content, file.bytes, {around_.node}});
    for (const std::string& holder : file.holders)
      if (holder != around_.node) files.back().holders.push_back(holder);
  }
  comm::control::SnapshotHeldT message;
  message.run = snapshot.run;
  message.epoch = snapshot.epoch;
  message.step = snapshot.step;
  message.rank = snapshot.rank;
  message.keep = snapshot.keep;
  message.files = comm::control::to_tables(files);
  around_.report(std::move(message));
}

}  // namespace modelet::agent
