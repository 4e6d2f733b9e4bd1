// Disk: the files of snapshots on a node or in the scheduler's store. A disk outlives processes. Promises is
// told of each file that a fault destroys. Equal runs have the same files: each run counts as a user of such
// a file, and the file is removed with its last user.
#pragma once

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

  // Returns false if the disk is full.
  bool write(uint64_t run, uint64_t step, const comm::ContentId& content) {
    if (world_.now() < full_until_) return false;
    files_[content].written = world_.now();
    refer(run, step, content);
    return true;
  }
  // The file, which is there already, is now also used by this run.
  void refer(uint64_t run, uint64_t step, const comm::ContentId& content) {
    files_.at(content).steps[run] = step;
    promises_.written(node_, run, content);
  }
  bool has(const comm::ContentId& content) const { return files_.contains(content); }
  void remove_before(uint64_t run, uint64_t step, const std::set<comm::ContentId>& but_for) {
    for (auto file = files_.begin(); file != files_.end();) {
      std::map<uint64_t, uint64_t>& steps = file->second.steps;
      const auto of_run = steps.find(run);
      if (of_run != steps.end() && of_run->second < step && !but_for.contains(file->first)) {
        promises_.removed(node_, run, file->first);
        steps.erase(of_run);
      }
      file = steps.empty() ? files_.erase(file) : std::next(file);
    }
  }

  // ---- faults
  void fill(double seconds) { full_until_ = world_.now() + seconds; }
  void lose_since(double time) {
    destroy([time](const auto& file) { return file.second.written >= time; });
  }
  // Destroys one file, counted in the order of addresses.
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
    std::map<uint64_t, uint64_t> steps;  // run -> step
    double written = 0;
  };
  template <class Which>
  void destroy(const Which& which) {
    std::erase_if(files_, [&](const auto& file) {
      if (!which(file)) return false;
      for (const auto& [run, step] : file.second.steps) promises_.destroyed(node_, run, file.first);
      return true;
    });
  }

  World& world_;
  Promises& promises_;
  std::string node_;
  double full_until_ = 0;
  std::map<comm::ContentId, File> files_;
};

// Something that keeps files for others.
class Holder {
 public:
  virtual ~Holder() = default;
  virtual Host& host() = 0;
  virtual bool offered(uint64_t run, uint64_t step, const comm::ContentId& content) = 0;  // false: the file is refused
  virtual bool gives(const comm::ContentId& content, const std::string& to) const = 0;
};

}  // namespace modelet::simulation
