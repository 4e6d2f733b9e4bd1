#include "scheduler/core/values/snapshots.h"

#include <algorithm>
#include <map>

namespace modelet::scheduler {
namespace {

constexpr size_t kMostUnfinished = 16;  // an agent may claim any number of steps

bool contains(const std::vector<std::string>& holders, const std::string& name) {
  return std::ranges::find(holders, name) != holders.end();
}

// Where the files of a snapshot are in its list. A snapshot may have thousands of files, and so may a message
// that is compared with it.
class FilesByName {
 public:
  explicit FilesByName(const comm::Snapshot& snapshot) {
    for (size_t i = 0; i < snapshot.files.size(); ++i) places_.emplace(snapshot.files[i].name, i);
  }
  // The file of `snapshot`, which has only got more files since; null: it had none of this name.
  template <class Snapshot>
  auto find(Snapshot& snapshot, const std::string& name) const {
    const auto found = places_.find(name);
    return found == places_.end() ? nullptr : &snapshot.files[found->second];
  }

 private:
  std::map<std::string, size_t> places_;
};

// The same file name with another content is a contradiction.
bool agrees(const comm::Snapshot& known, const FilesByName& by_name, const comm::Snapshot& files) {
  return std::ranges::all_of(files.files, [&](const comm::SnapshotFile& file) {
    const comm::SnapshotFile* same = by_name.find(known, file.name);
    return same == nullptr || (same->content == file.content && same->bytes == file.bytes);
  });
}

// Returns whether there is a new one.
bool add_to(comm::SnapshotFile& known, const std::vector<std::string>& holders) {
  const size_t before = known.holders.size();
  for (const std::string& holder : holders)
    if (known.holders.size() < comm::kMostHolders && !contains(known.holders, holder))
      known.holders.push_back(holder);
  return known.holders.size() > before;
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

bool Snapshots::add(uint32_t epoch, uint32_t size, uint32_t rank, const comm::Snapshot& files) {
  if (files.epoch != epoch || rank >= size) return false;
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
  const FilesByName by_name(known);
  if (!agrees(known, by_name, files)) return false;
  for (const comm::SnapshotFile& file : files.files) {
    if (comm::SnapshotFile* same = by_name.find(known, file.name))
      add_to(*same, file.holders);
    else if (known.files.size() < comm::kMostSnapshotFiles)
      known.files.push_back(file);
  }
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
  const FilesByName by_name(*known);
  if (!agrees(*known, by_name, files)) return false;
  bool is_new = files.keep && !known->keep;
  for (const comm::SnapshotFile& file : files.files)
    if (comm::SnapshotFile* same = by_name.find(*known, file.name))
      is_new = add_to(*same, file.holders) || is_new;
  known->keep = known->keep || files.keep;
  return is_new;
}

std::optional<uint64_t> Snapshots::settle(uint32_t holders, const IsThere& is_there) {
  const auto same_step = [&](const Unfinished& each) {
    return std::ranges::find(stable_, each.snapshot.step, &comm::Snapshot::step);
  };
  // A snapshot that a later group wrote after the same step replaces the earlier one if it has all of its
  // files.
  const auto has_all_of = [](const Unfinished& each, const comm::Snapshot& earlier) {
    const FilesByName by_name(each.snapshot);
    return std::ranges::all_of(
        earlier.files, [&](const auto& file) { return by_name.find(each.snapshot, file.name) != nullptr; });
  };
  const auto is_complete = [&](const Unfinished& each) {
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
