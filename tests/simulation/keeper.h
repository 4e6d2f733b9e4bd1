// Keeper: the part of a node in keeping snapshots, by the rules of node_agent/snapshots, without threads and
// bytes. Each of its own files goes to one other node, chosen in turn, or to the scheduler's store; then
// SnapshotHeld is reported. Files that are to be kept also go to the store. Stable removes older files. It
// does one piece of work at a time.
#pragma once

#include <deque>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation/disk.h"
#include "tests/simulation/mutants.h"
#include "tests/simulation/network.h"

namespace modelet::simulation {

struct KeeperSurroundings {
  World& world;
  Network& network;
  Host& host;
  Disk& disk;
  std::string node;
  std::function<Holder*(const std::string& node)> find;  // null: no holder has that name
  std::function<void(uint64_t pool, msg::SnapshotHeldT)> held;
  Mutant mutant = Mutant::kNone;
};

class Keeper {
 public:
  explicit Keeper(KeeperSurroundings surroundings) : around_(std::move(surroundings)) {}

  void begin(const msg::PrepareT& prepare, uint64_t from_step);
  // Calls `done(true)` once all files are on this disk. If `wanted` returns false, it stops and calls
  // nothing.
  void bring(const comm::Snapshot& snapshot, std::vector<std::string> names, std::function<bool()> wanted,
             std::function<void(bool)> done);
  void take(uint64_t step, bool keep, std::vector<comm::SnapshotFile> files);
  void stable(uint64_t run, uint64_t step);
  void admit(const msg::AdmitT& message);
  // Only nodes that the scheduler has named may fetch files.
  bool admits(const std::string& node) const { return holders_.contains(node) || admitted_.contains(node); }
  bool offered(uint64_t run, uint64_t step, const comm::ContentId& content);

 private:
  struct Own {
    uint64_t number = 0, run = 0, step = 0;
    uint32_t epoch = 0, rank = 0;
    bool keep = false, said = false, told = false, told_stored = false;
    std::vector<comm::SnapshotFile> files;  // their holders are the others that have them
    double retry_at = 0;
    uint32_t failures = 0;
  };
  struct Bringing;

  bool wants_store(const Own& own) const { return own.keep && !own.told_stored && has_store_; }
  bool is_due(const Own& own) const;
  void work();
  void advance(Own& own);
  void send(Own& own, size_t file, std::vector<std::string> candidates);
  void failed(Own& own);
  void drop_superseded();
  void say(const Own& own);
  void tell(Own& own);
  std::vector<std::string> candidates() const;
  Own* own_of(uint64_t number);
  void bring_next(const std::shared_ptr<Bringing>& bringing);

  KeeperSurroundings around_;
  uint64_t pool_ = 0, run_ = 0, numbers_ = 0;
  uint32_t epoch_ = 0, rank_ = 0;
  bool has_store_ = false, busy_ = false;
  std::vector<std::string> members_;
  std::set<std::string> holders_, admitted_;
  std::deque<Own> own_;
};

}  // namespace modelet::simulation
