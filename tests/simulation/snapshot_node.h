// SnapshotNode: the part of a node in keeping snapshots. Its decisions are the real OwnSnapshots, HeldFiles and
// Removals; instead of a disk, sockets and a thread it has a simulated disk and wires. It does one task at a
// time.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "node_agent/snapshots/kept_files.h"
#include "node_agent/snapshots/own_snapshots.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/mutants.h"
#include "tests/simulation/network.h"

namespace modelet::simulation {

struct SnapshotSurroundings {
  World& world;
  Network& network;
  Host& host;
  Disk& disk;
  std::string node;
  std::function<Holder*(const std::string& node)> find;  // null: no holder has that name
  std::function<void(uint64_t pool, msg::SnapshotHeldT)> held;
  Mutant mutant = Mutant::kNone;
};

class SnapshotNode {
 public:
  explicit SnapshotNode(SnapshotSurroundings surroundings);

  void begin(const msg::PrepareT& prepare, uint64_t from_step);
  // Calls `done(true)` once all files are on this disk. If `wanted` returns false, it stops and calls
  // nothing.
  void bring(const comm::Snapshot& snapshot, std::vector<std::string> names, std::function<bool()> wanted,
             std::function<void(bool)> done);
  void take(uint64_t step, bool keep, const std::vector<comm::SnapshotFile>& files);
  void stable(uint64_t run, uint64_t step);
  void leave();
  void admit(const msg::AdmitT& message);
  // Only nodes that the scheduler has named may fetch files.
  bool admits(const std::string& node) const {
    return group_.holders.contains(node) || admitted_.contains(node);
  }
  bool offered(uint64_t run, uint64_t step, const comm::ContentId& content);

 private:
  struct Bringing;
  using Brought =
      std::function<void(std::vector<agent::HeldFile> files)>;  // fewer than wanted: not all could be had

  void work();
  void rest();
  void forget();
  void carry_out(const agent::OwnSnapshots::Adopt& task);
  void carry_out(const agent::OwnSnapshots::Send& task);
  void carry_out(const agent::OwnSnapshots::Repair& task);
  void ended(const agent::OwnSnapshots::Task& task, bool good);
  void bring_next(const std::shared_ptr<Bringing>& bringing);

  SnapshotSurroundings around_;
  agent::OwnSnapshots own_;
  agent::OwnSnapshots::Group group_;
  agent::HeldFiles held_{uint64_t{1} << 40};
  agent::Removals removals_;
  std::set<std::string> admitted_;
  std::map<std::filesystem::path, comm::SnapshotFile>
      written_;  // what the run has written, until it is forgotten
  bool is_busy_ = false, rests_ = false;
};

}  // namespace modelet::simulation
