// Disk: the files of snapshots that a node or the scheduler's store has. It outlives processes. What a fault takes
// from it is told to Promises.
#pragma once

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

  // False if it is full.
  bool write(uint64_t run, uint64_t step, const comm::ContentId& content) {
    if (world_.now() < full_until_) return false;
    files_[content] = {run, step, world_.now()};
    promises_.written(node_, content);
    return true;
  }
  bool has(const comm::ContentId& content) const { return files_.contains(content); }
  void remove_before(uint64_t run, uint64_t step, const std::set<comm::ContentId>& but_for) {
    take([&](const auto& file) {
      return file.second.run == run && file.second.step < step && !but_for.contains(file.first);
    }, [&](const comm::ContentId& content) { promises_.removed(node_, content); });
  }

  // ---- faults
  void fill(double seconds) { full_until_ = world_.now() + seconds; }
  void lose_since(double time) {
    destroy([time](const auto& file) { return file.second.written >= time; });
  }
  // Of the files that are there, in the order of their addresses.
  void rot(uint32_t which) {
    if (files_.empty()) return;
    const uint32_t place = which % static_cast<uint32_t>(files_.size());
    uint32_t at = 0;
    destroy([&](const auto&) { return at++ == place; });
  }
  void lose_all() {
    destroy([](const auto&) { return true; });
  }

 private:
  struct File {
    uint64_t run = 0, step = 0;
    double written = 0;
  };
  template <class Which, class Told>
  void take(const Which& which, const Told& told) {
    for (auto file = files_.begin(); file != files_.end();) {
      if (!which(*file)) {
        ++file;
        continue;
      }
      told(file->first);
      file = files_.erase(file);
    }
  }
  template <class Which>
  void destroy(const Which& which) {
    take(which, [this](const comm::ContentId& content) { promises_.destroyed(node_, content); });
  }

  World& world_;
  Promises& promises_;
  std::string node_;
  double full_until_ = 0;
  std::map<comm::ContentId, File> files_;
};

// Whoever keeps files for others.
class Holder {
 public:
  virtual ~Holder() = default;
  virtual Host& host() = 0;
  virtual bool offered(uint64_t run, uint64_t step, const comm::ContentId& content) = 0;  // false: not taken
  virtual bool gives(const comm::ContentId& content, const std::string& to) const = 0;
};

}  // namespace modelet::simulation
