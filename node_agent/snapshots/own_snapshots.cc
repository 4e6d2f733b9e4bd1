#include "node_agent/snapshots/own_snapshots.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/system/file.h"
#include "comm/content/snapshot.h"
#include "comm/content/transfer/transfer.h"
#include "node_agent/snapshots/holder_order.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;
using comm::Manifest;

constexpr double kAvoid = 30;          // seconds during which a node that did not take a file is asked last
constexpr uint64_t kLongestRest = 16;  // times retry_seconds
constexpr size_t kMostWaiting = 2;  // snapshots that may wait for the scheduler's store: each takes room here

bool is_in_store(const HeldFile& file) { return std::ranges::find(file.holders, "") != file.holders.end(); }

}  // namespace

void OwnSnapshots::begin(const SnapshotKeeper::Group& group) {
  const bool same_pool = group.pool == group_.pool;
  const bool same_run = same_pool && group.run == group_.run;
  // What an earlier group of this run wrote after the step that this group goes on from is not this group's,
  // even if the node has worked for another run meanwhile: reported in this group's name, the part of one rank
  // would pass for the whole snapshot. Of other runs, only snapshots that must still get to the scheduler's
  // store are kept here. The files of the rest stay until their room is needed: such a run may go on without
  // this node.
  std::erase_if(snapshots_, [&](const Snapshot& snapshot) {
    const bool stays = same_pool && snapshot.run == group.run
                           ? snapshot.step <= group.from_step && (snapshot.told || snapshot.keep)
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
    if (snapshot.run != group.run) continue;
    snapshot.epoch = group.epoch;
    snapshot.rank = group.rank;
  }
}

void OwnSnapshots::take(uint64_t step, bool keep, fs::path folder, std::vector<std::string> files) {
  if (files.size() > comm::kMostSnapshotFiles)
    return log_warning("the snapshot of step {} has {} files, more than {}: it is not kept elsewhere", step,
                       files.size(), comm::kMostSnapshotFiles);
  snapshots_.push_back({.run = group_.run,
                        .epoch = group_.epoch,
                        .rank = group_.rank,
                        .step = step,
                        .keep = keep,
                        .folder = std::move(folder),
                        .names = std::move(files)});
  drop_superseded();
}

void OwnSnapshots::brought(uint64_t run, uint64_t step, bool keep, fs::path folder,
                           std::vector<HeldFile> files) {
  if (run != group_.run) return;
  Snapshot snapshot{.run = run,
                    .epoch = group_.epoch,
                    .rank = group_.rank,
                    .step = step,
                    .keep = keep,
                    .folder = std::move(folder),
                    .told_stored = true};  // the rank that wrote it takes care of that
  for (HeldFile& file : files) {
    file.holders.clear();  // the scheduler named them, but some may be gone by now
    snapshot.names.push_back(file.name);
    snapshot.files.push_back(std::move(file));
  }
  tell(snapshot);
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

// Forgets a snapshot. Its files in the run's folder are removed as well, unless the user wants them: then
// the trainer decides.
void OwnSnapshots::forget(const Snapshot& snapshot, bool remove_files) {
  for (const HeldFile& file : snapshot.files) unneeded_.insert(file.content);
  if (!remove_files || snapshot.keep) return;
  if (around_.local_store != nullptr)
    for (const HeldFile& file : snapshot.files) around_.local_store->remove(file.content);
  std::error_code gone;  // ignored: the folder may have other files, too
  for (const std::string& name : snapshot.names) fs::remove(snapshot.folder / name, gone);
  fs::remove(snapshot.folder, gone);
}

std::set<comm::ContentId> OwnSnapshots::contents() const {
  std::set<comm::ContentId> contents;
  for (const Snapshot& snapshot : snapshots_)
    for (const HeldFile& file : snapshot.files) contents.insert(file.content);
  return contents;
}

std::vector<comm::ContentId> OwnSnapshots::take_unneeded() {
  const auto needed = contents();
  std::vector<comm::ContentId> unneeded;
  std::ranges::set_difference(std::exchange(unneeded_, {}), needed, std::back_inserter(unneeded));
  return unneeded;
}

// Snapshots that are to be kept go to the scheduler's store, if it has one.
bool OwnSnapshots::wants_store(const Snapshot& snapshot) const {
  return snapshot.keep && !snapshot.told_stored && group_.store.has_value();
}

bool OwnSnapshots::is_due(const Snapshot& snapshot) const {
  return (!snapshot.told || wants_store(snapshot)) && clock_.now() >= snapshot.retry_at;
}

bool OwnSnapshots::has_work() const {
  return std::ranges::any_of(snapshots_, [this](const Snapshot& snapshot) { return is_due(snapshot); });
}

bool OwnSnapshots::is_sending() const {
  return std::ranges::any_of(snapshots_, [this](const Snapshot& snapshot) {
    return snapshot.failures == 0 && (!snapshot.told || wants_store(snapshot));
  });
}

void OwnSnapshots::work() {
  const auto next = [this](bool told) {
    return std::ranges::find_if(
        snapshots_, [&](const Snapshot& snapshot) { return is_due(snapshot) && snapshot.told == told; });
  };
  auto due = next(false);  // what the run needs comes before what the user wants
  if (due == snapshots_.end()) due = next(true);
  if (due == snapshots_.end()) return;
  try {
    advance(*due);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {  // also the disk's errors: the run goes on
    around_.check();
    if (++due->failures == 1)
      log_warning("the snapshot of step {} is not safe yet, it is tried again: {}", due->step, error.what());
    due->retry_at = clock_.now() + around_.retry_seconds * std::min(due->failures, kLongestRest);
    drop_superseded();
  }
}

// Drops two kinds of snapshots: one that failed or was not begun, if there is a newer one; and the oldest
// that wait for the store, if there are too many, because the user wants the newest.
void OwnSnapshots::drop_superseded() {
  uint64_t newest = 0;
  for (const Snapshot& snapshot : snapshots_)
    if (snapshot.run == group_.run) newest = std::max(newest, snapshot.step);
  std::erase_if(snapshots_, [&](const Snapshot& snapshot) {
    const bool superseded = !snapshot.told && !snapshot.keep && snapshot.run == group_.run &&
                            snapshot.step < newest && (snapshot.failures > 0 || snapshot.files.empty());
    if (!superseded) return false;
    log_warning("the snapshot of step {} is left out: there is a newer one", snapshot.step);
    forget(snapshot, true);
    return true;
  });
  const auto waits = [this](const Snapshot& snapshot) { return wants_store(snapshot); };
  if (static_cast<size_t>(std::ranges::count_if(snapshots_, waits)) <= kMostWaiting) return;
  const auto oldest = std::ranges::find_if(snapshots_, waits);
  log_warning("the scheduler's store did not take the snapshot of step {}: it stays in {} only", oldest->step,
              oldest->folder.string());
  oldest->told_stored = true;  // the run may need it, so it stays until a newer one is stable
}

// Does one unit of the work on a snapshot.
void OwnSnapshots::advance(Snapshot& snapshot) {
  if (snapshot.files.size() < snapshot.names.size()) return adopt_next(snapshot);
  // This may be the end of a group. The next group may go on from these files before other nodes have them.
  if (!snapshot.told && snapshot.keep && !std::exchange(snapshot.said, true)) return say(snapshot);
  if (!snapshot.told) {
    for (size_t file = 0; file < snapshot.files.size(); ++file)
      if (snapshot.files[file].holders.empty() && !is_alone()) return copy(snapshot, file);
    return tell(snapshot);
  }
  const auto missing = std::ranges::find_if_not(snapshot.files, is_in_store);
  if (missing == snapshot.files.end()) return tell(snapshot);
  send(snapshot, *missing, "");
  missing->holders.emplace_back();
}

// Whether nobody else can hold this node's files.
bool OwnSnapshots::is_alone() const { return group_.members.size() <= 1 && !group_.store; }

void OwnSnapshots::adopt_next(Snapshot& snapshot) {
  const std::string& name = snapshot.names[snapshot.files.size()];
  const MappedFile file(snapshot.folder / name);
  const Manifest manifest = Manifest::of(file.bytes(), comm::kChunkBytes, around_.check);
  std::shared_ptr<comm::StoredContent> entry = around_.store.adopt(manifest, snapshot.folder / name);
  if (!entry) {
    around_.let_go(to_text(manifest.id()));
    throw Error(name + " is in use");
  }
  snapshot.files.push_back({name, manifest.id(), manifest.bytes(), {}, std::move(entry)});
}

// The nodes to which a file may go. If the scheduler's store is on this machine, only the store. Else the
// other members, beginning with the partner, and last those that failed a moment ago. Finally the store, for a
// group of one and in case no member takes the file.
std::vector<std::string> OwnSnapshots::candidates() const {
  std::vector<std::string> nodes;
  if (around_.local_store != nullptr && group_.store) return {""};
  for (const uint32_t rank : holder_order(group_.rank, static_cast<uint32_t>(group_.members.size())))
    if (const std::string& node = group_.members[rank]; around_.links.knows(node)) nodes.push_back(node);
  const auto has_not_failed = [this](const std::string& node) {
    const auto failed = failed_at_.find(node);
    return failed == failed_at_.end() || clock_.now() - failed->second > kAvoid;
  };
  std::stable_partition(nodes.begin(), nodes.end(), has_not_failed);
  if (group_.store) nodes.emplace_back();
  return nodes;
}

void OwnSnapshots::copy(Snapshot& snapshot, size_t file) {
  HeldFile& its = snapshot.files[file];
  std::string complaints;
  for (const std::string& node : candidates()) {
    try {
      send(snapshot, its, node);
      its.holders.push_back(node);
      return;
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {
      around_.check();
      failed_at_[node] = clock_.now();
      complaints += fmt::format("{}{}", complaints.empty() ? "" : "; ", error.what());
    }
  }
  throw Error(its.name + ": " + (complaints.empty() ? "no other node of the group holds files" : complaints));
}

void OwnSnapshots::send(const Snapshot& snapshot, const HeldFile& file, const std::string& to) {
  if (to.empty() && around_.local_store != nullptr) {
    if (!around_.local_store->adopt(file.entry->manifest(), file.entry->path()))
      throw Error(file.name + " is in use in the scheduler's store");
    return;
  }
  const MappedFile mapped(file.entry->path());
  try {
    const auto manifest = file.entry->manifest();
    comm::send_content(around_.links.to(to), manifest, mapped.bytes(), {snapshot.run, snapshot.step});
  } catch (...) {
    around_.links.give_up(to);
    throw;
  }
}

void OwnSnapshots::tell(Snapshot& snapshot) {
  snapshot.told = true;
  snapshot.told_stored = snapshot.told_stored || std::ranges::all_of(snapshot.files, is_in_store);
  if (snapshot.run == group_.run) held_steps_.insert(snapshot.step);
  say(snapshot);
}

void OwnSnapshots::say(const Snapshot& snapshot) {
  comm::Snapshot text{.epoch = snapshot.epoch, .step = snapshot.step, .keep = snapshot.keep, .files = {}};
  for (const HeldFile& file : snapshot.files) {
    text.files.push_back({file.name, file.content, file.bytes, {around_.node}});
    for (const std::string& holder : file.holders)
      if (holder != around_.node) text.files.back().holders.push_back(holder);
  }
  comm::control::SnapshotHeldT message;
  message.run = snapshot.run;
  message.epoch = snapshot.epoch;
  message.step = snapshot.step;
  message.rank = snapshot.rank;
  message.keep = snapshot.keep;
  message.files = format_snapshot(text);
  around_.held(std::move(message));
}

}  // namespace modelet::agent
