// Disk: the files of snapshots on a node or in the scheduler's store. A disk outlives processes. Promises is
// told of each file that a fault destroys or that is removed. A damaged file seems to be there until somebody
// reads it. Equal runs have the same files: each run counts as a user of such a file.
#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "tests/simulation/network.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/world.h"

namespace modelet::simulation {

class Disk {
 public:
  Disk(World& world, Promises& promises, std::string node)
      : world_(world), promises_(promises), node_(std::move(node)) {}

  // Returns false if the disk is full or fails. Repairs a damaged file.
  bool write(uint64_t run, const comm::ContentId& content) {
    if (is_full()) return false;
    put(run, content);
    return true;
  }
  // The file is there already, and its run or its agent learns that only now.
  void put(uint64_t run, const comm::ContentId& content) {
    File& file = files_[content];
    file.written = world_.now();
    file.damaged = false;
    for (const uint64_t user : file.runs) promises_.written(node_, user, content);
    refer(run, content);
  }
  bool is_full() const { return world_.now() < std::max(full_until_, fails_until_); }
  uint32_t losses() const { return losses_; }  // how often all was lost
  // The file, which is there already, is now also used by this run.
  void refer(uint64_t run, const comm::ContentId& content) {
    files_.at(content).runs.insert(run);
    promises_.written(node_, run, content);
  }
  // Returns false if the file is not there or damaged, or if the disk fails.
  bool read(const comm::ContentId& content) const {
    const auto found = files_.find(content);
    return found != files_.end() && !found->second.damaged && world_.now() >= fails_until_;
  }
  void remove(const comm::ContentId& content) {
    const auto file = files_.find(content);
    if (file == files_.end()) return;
    if (!file->second.damaged)
      for (const uint64_t run : file->second.runs) promises_.removed(node_, run, content);
    files_.erase(file);
  }
  std::set<comm::ContentId> contents() const {
    std::set<comm::ContentId> contents;
    for (const auto& [content, file] : files_) contents.insert(content);
    return contents;
  }

  // ---- faults
  void fill(double seconds) { full_until_ = world_.now() + seconds; }
  void fail(double seconds) { fails_until_ = world_.now() + seconds; }  // it neither reads nor writes
  // The power fails: what was written since then is lost, or only a part of it is there.
  void lose_since(double time) {
    for (auto file = files_.begin(); file != files_.end();) {
      if (file->second.written < time) {
        ++file;
      } else if (destroyed(*file); world_.chance(0.5)) {
        (file++)->second.damaged = true;
      } else {
        file = files_.erase(file);
      }
    }
  }
  // Damages one file, counted in the order of addresses.
  void rot(uint32_t which) {
    if (files_.empty()) return;
    const auto file = std::next(files_.begin(), which % static_cast<uint32_t>(files_.size()));
    destroyed(*file);
    file->second.damaged = true;
  }
  // The disk goes away with a node that nobody needs any more: nothing that a run lacks afterwards is excused by it.
  void give_away() {
    for (const auto& [content, file] : files_)
      if (!file.damaged)
        for (const uint64_t run : file.runs) promises_.given_away(node_, run, content);
    files_.clear();
    ++losses_;
  }
  void lose_all() {
    for (const auto& file : files_) destroyed(file);
    files_.clear();
    ++losses_;
  }

 private:
  struct File {
    std::set<uint64_t> runs;  // that use it
    double written = 0;
    bool damaged = false;
  };
  void destroyed(const std::pair<const comm::ContentId, File>& file) {
    for (const uint64_t run : file.second.runs) promises_.destroyed(node_, run, file.first);
  }

  World& world_;
  Promises& promises_;
  std::string node_;
  uint32_t losses_ = 0;
  double full_until_ = 0, fails_until_ = 0;
  std::map<comm::ContentId, File> files_;
};

// Something that keeps files for others.
class Holder {
 public:
  virtual ~Holder() = default;
  virtual Host& host() = 0;
  virtual bool offered(uint64_t run, uint64_t step,
                       const comm::ContentId& content) = 0;  // false: the file is refused
  virtual bool gives(const comm::ContentId& content, const std::string& to) const = 0;
};

}  // namespace modelet::simulation
