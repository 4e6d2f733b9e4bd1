#include "scheduler/core/values/snapshots.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <unordered_map>

namespace modelet::scheduler {
namespace {

constexpr size_t kMostUnfinished = 16;   // an agent may claim any number of steps
constexpr size_t kMostKnownHolders = 8;  // of a file; two suffice

bool contains(const std::vector<std::string>& holders, const std::string& name) {
  return std::ranges::find(holders, name) != holders.end();
}

// The files of a snapshot by name: there may be thousands, and reports about as many. Valid until one is added.
class ByName {
 public:
  explicit ByName(comm::Snapshot& snapshot) {
    for (comm::SnapshotFile& file : snapshot.files) files_.emplace(file.name, &file);
  }
  comm::SnapshotFile* find(const std::string& name) const {
    const auto found = files_.find(name);
    return found == files_.end() ? nullptr : found->second;
  }

 private:
  std::unordered_map<std::string_view, comm::SnapshotFile*> files_;
};

// The same file name with another content is a contradiction.
bool agrees(const ByName& known, const comm::Snapshot& files) {
  return std::ranges::all_of(files.files, [&](const comm::SnapshotFile& file) {
    const comm::SnapshotFile* same = known.find(file.name);
    return same == nullptr || (same->content == file.content && same->bytes == file.bytes);
  });
}

// Returns whether there is a new one. The oldest ones, which are the likeliest to be gone, make room for it.
bool add_to(comm::SnapshotFile& known, const std::vector<std::string>& holders) {
  bool is_new = false;
  for (const std::string& holder : holders) {
    if (contains(known.holders, holder)) continue;
    if (known.holders.size() >= kMostKnownHolders)
      known.holders.erase(
          std::ranges::find_if(known.holders, [](const auto& each) { return !each.empty(); }));
    known.holders.push_back(holder);
    is_new = true;
  }
  return is_new;
}

size_t count_there(const comm::SnapshotFile& file, const Snapshots::IsThere& is_there) {
  return static_cast<size_t>(std::ranges::count_if(file.holders, is_there));
}

bool can_be_had(const comm::Snapshot& snapshot, const Snapshots::IsThere& is_there) {
  return std::ranges::all_of(snapshot.files,
                             [&](const auto& file) { return count_there(file, is_there) > 0; });
}

// Whether all ranks have reported.
bool is_reported(const Snapshots::Unfinished& unfinished) {
  return unfinished.ranks.size() == unfinished.size && !unfinished.snapshot.files.empty();
}

}  // namespace

Snapshots::Snapshots(comm::Snapshot start) {
  start.epoch = kBeforeRun;
  for (comm::SnapshotFile& file : start.files) file.holders = {""};
  stable_.push_back(std::move(start));
}

size_t Snapshots::files_of_start() const {
  return !stable_.empty() && stable_.front().epoch == kBeforeRun ? stable_.front().files.size() : 0;
}

void Snapshots::forget_start() {
  std::erase_if(stable_, [](const comm::Snapshot& each) { return each.epoch == kBeforeRun; });
}

bool Snapshots::add(uint32_t epoch, uint32_t size, uint32_t rank, const comm::Snapshot& files,
                    size_t most_files) {
  if (files.epoch != epoch || rank >= size || files.files.size() > most_files) return false;
  auto entry =
      std::ranges::find_if(unfinished_, [&](const auto& each) { return each.snapshot.step == files.step; });
  if (entry == unfinished_.end()) {
    if (newest() != nullptr && (files.step < stable_step() || files.epoch <= newest()->epoch) &&
        files.step <= stable_step())
      return false;
    if (unfinished_.size() >= kMostUnfinished) unfinished_.erase(unfinished_.begin());
    const auto place =
        std::ranges::find_if(unfinished_, [&](const auto& each) { return each.snapshot.step > files.step; });
    entry = unfinished_.insert(place, Unfinished{{epoch, files.step, false, {}}, {}, size});
  }
  comm::Snapshot& known = entry->snapshot;
  const ByName known_files(known);
  if (!agrees(known_files, files)) return false;
  const auto is_new = [&](const comm::SnapshotFile& file) { return known_files.find(file.name) == nullptr; };
  if (known.files.size() + static_cast<size_t>(std::ranges::count_if(files.files, is_new)) > most_files)
    return false;
  std::vector<comm::SnapshotFile> more;
  for (const comm::SnapshotFile& file : files.files) {
    comm::SnapshotFile* same = known_files.find(file.name);
    if (same == nullptr)
      same = &more.emplace_back(comm::SnapshotFile{file.name, file.content, file.bytes, {}});
    add_to(*same, file.holders);
  }
  std::ranges::move(more, std::back_inserter(known.files));
  known.keep = known.keep || files.keep;
  if (!is_reported(*entry)) entry->ranks.insert(rank);  // else a group may continue from it already
  return true;
}

comm::Snapshot* Snapshots::complete_of(uint64_t step) {
  const auto stable = std::ranges::find(stable_, step, &comm::Snapshot::step);
  if (stable != stable_.end()) return &*stable;
  const auto reported = std::ranges::find_if(
      unfinished_, [&](const Unfinished& each) { return each.snapshot.step == step && is_reported(each); });
  return reported == unfinished_.end() ? nullptr : &reported->snapshot;
}

bool Snapshots::add_holders(const comm::Snapshot& files) {
  comm::Snapshot* known = complete_of(files.step);
  if (known == nullptr) return false;
  const ByName known_files(*known);
  if (!agrees(known_files, files)) return false;
  bool is_new = files.keep && !known->keep;
  for (const comm::SnapshotFile& file : files.files)
    if (comm::SnapshotFile* same = known_files.find(file.name))
      is_new = add_to(*same, file.holders) || is_new;
  known->keep = known->keep || files.keep;
  return is_new;
}

std::optional<uint64_t> Snapshots::advance_stable(uint32_t holders, const IsThere& is_there) {
  const auto same_step = [&](const Unfinished& each) {
    return std::ranges::find(stable_, each.snapshot.step, &comm::Snapshot::step);
  };
  // A snapshot that a later group wrote after the same step replaces the earlier one if it has all of its
  // files.
  const auto has_all_of = [](Unfinished& each, const comm::Snapshot& earlier) {
    const ByName files(each.snapshot);
    return std::ranges::all_of(earlier.files,
                               [&](const auto& file) { return files.find(file.name) != nullptr; });
  };
  const auto is_complete = [&](Unfinished& each) {
    const auto earlier = same_step(each);
    return is_reported(each) && (earlier == stable_.end() || has_all_of(each, *earlier)) &&
           std::ranges::all_of(each.snapshot.files,
                               [&](const auto& file) { return count_there(file, is_there) >= holders; });
  };
  bool is_news = false;
  for (auto each = unfinished_.begin(); each != unfinished_.end();) {
    if (!is_complete(*each)) {
      ++each;
      continue;
    }
    is_news = true;
    if (const auto earlier = same_step(*each); earlier != stable_.end())
      *earlier = std::move(each->snapshot);
    else
      stable_.push_back(std::move(each->snapshot));
    each = unfinished_.erase(each);
  }
  if (!is_news) return std::nullopt;
  std::ranges::sort(stable_, {}, &comm::Snapshot::step);
  // Snapshots of earlier steps that the user wants may still become complete.
  std::erase_if(unfinished_, [&](const Unfinished& each) {
    return each.snapshot.step < stable_step() && !each.snapshot.keep;
  });
  forget_old();
  return stable_step();
}

void Snapshots::forget_old() {
  size_t kept = static_cast<size_t>(std::ranges::count_if(stable_, &comm::Snapshot::keep));
  const uint64_t newest = stable_step();
  std::erase_if(stable_, [&](const comm::Snapshot& each) {
    if (each.step == newest) return false;
    if (!each.keep) return true;
    return kept > kMostKept && kept-- > 0;
  });
}

void Snapshots::go_back_to(uint64_t step) {
  // The snapshot of this step is complete, and its files go on finding holders.
  std::erase_if(unfinished_, [&](const Unfinished& each) {
    return each.snapshot.step != step || step <= stable_step() || !is_reported(each);
  });
  std::erase_if(stable_, [&](const comm::Snapshot& each) { return each.step > step; });
}

bool Snapshots::holder_gone(const std::string& holder) {
  bool changed = false;
  for (Unfinished& each : unfinished_)
    for (comm::SnapshotFile& file : each.snapshot.files) changed |= std::erase(file.holders, holder) > 0;
  return changed;
}

// Nodes have removed their files of the stable snapshots before the newest one, so of those only the store's
// files count.
const comm::Snapshot* Snapshots::newest_at_hand(const IsThere& is_there) const {
  const auto is_stored = [&](const std::string& holder) { return holder.empty() && is_there(holder); };
  for (auto each = stable_.rbegin(); each != stable_.rend(); ++each)
    if (can_be_had(*each, each == stable_.rbegin() ? is_there : IsThere(is_stored))) return &*each;
  return nullptr;
}

const comm::Snapshot* Snapshots::newest_complete(const IsThere& is_there) const {
  for (auto each = unfinished_.rbegin(); each != unfinished_.rend(); ++each)
    if (each->snapshot.step > stable_step() && is_reported(*each) && can_be_had(each->snapshot, is_there))
      return &each->snapshot;
  return nullptr;
}

std::optional<Snapshots::Missing> Snapshots::missing(const IsThere& is_there) const {
  if (newest() == nullptr) return std::nullopt;
  for (const comm::SnapshotFile& file : newest()->files)
    if (count_there(file, is_there) == 0 && !file.holders.empty())
      return Missing{file.name, file.holders.front()};
  return std::nullopt;
}

bool Snapshots::newest_lies_with(const std::string& holder) const {
  return newest() != nullptr && std::ranges::all_of(newest()->files, [&](const auto& file) {
           return contains(file.holders, holder);
         });
}

}  // namespace modelet::scheduler
