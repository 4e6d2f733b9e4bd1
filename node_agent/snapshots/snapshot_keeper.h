// SnapshotKeeper: this node's part in keeping the snapshots of a run (comm/content/snapshot.h): its own files,
// which it sends to other nodes, and theirs, which it holds for them.
//
// It has a folder of files that are known by their content (comm/content/store.h) and a port for data
// (comm/content/transfer/data_server.h), where the nodes that the scheduler has named, and nobody else, offer
// and fetch. A file that this node has written is in that folder as a hard link: nothing is copied, and whoever
// wrote it may remove its own name at any time.
//
//   keeper.begin(group)            a Prepare has come: who the others are
//   keeper.bring(snapshot, ...)    before the job starts: the files that its rank needs
//   keeper.take(step, ...)         a snapshot is written: send it, then say SnapshotHeld
//   keeper.hurry()                 the run waits for what is still to be sent
//   keeper.stable(run, step)       older ones are not needed any more
//
// Sending happens on a thread of its own, at a limited rate. Each file goes to one other member of the group,
// in turn, so that what one node loses lies on several. A member that fails is replaced by the next. A group of
// one sends to the scheduler's store, and what is to be kept goes there from any group. If nobody takes a file,
// or this disk is full, that is a warning, and tried again until there is a newer snapshot: a run never fails
// because of it.
//
// Threads: all functions may be called from any thread. bring() works on the caller's; `held` is called on the
// keeper's own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/content/snapshot.h"
#include "comm/control/control.h"
#include "comm/security/keys.h"
#include "comm/transport/rate_limit.h"

namespace modelet::agent {

struct KeeperOptions {
  std::string node;                     // name of this node
  std::filesystem::path folder;         // of what it holds; this process's alone
  uint64_t bytes = uint64_t{32} << 30;  // limit of that folder, and half of its disk is one; --snapshot-mib
  // Of the scheduler's store, if that is on this machine: files get there as hard links, and need no other holder.
  // Empty: they are sent.
  std::filesystem::path local_store = {};
  std::string listen = "tcp://127.0.0.1:*";  // of the port for data: its host, or "ipc://FOLDER/*"
  std::optional<comm::KeyPair> key = {};     // this node's, with which it sends and fetches; none: no keys
  // What leaves here counts in `sending`, which the machine's other traffic shares; null: no limit.
  std::shared_ptr<comm::RateLimit> sending = {};
  double fetch_bytes_per_second = 0;  // 0: no limit
  double retry_seconds = 2;           // until what failed is tried again
  double give_up_seconds = 60;        // of silence, after which another node counts as gone
};

class SnapshotKeeper {
 public:
  // `held`: takes SnapshotHeld for the scheduler. It comes again with more holders if there are more.
  using Held = std::function<void(comm::control::SnapshotHeldT)>;

  // Binds, and starts the thread. Throws as DataServer.
  SnapshotKeeper(KeeperOptions options, Held held);
  SnapshotKeeper(const SnapshotKeeper&) = delete;
  SnapshotKeeper& operator=(const SnapshotKeeper&) = delete;
  ~SnapshotKeeper();

  // For Register.
  const std::string& endpoint() const;    // holder_endpoint
  const std::string& public_key() const;  // holder_key; empty: no keys
  std::string fetch_key() const;

  // The group that this node belongs to from now on.
  struct Group {
    uint64_t pool = 0, run = 0;
    uint32_t epoch = 0, rank = 0;
    std::vector<std::string> members = {};             // Prepare.node_names
    std::vector<comm::control::HolderT> holders = {};  // Prepare.holders; this node may be one of them
    // The scheduler's port for data; none: it has no store.
    std::optional<comm::control::SchedulerAddress> store = {};
    uint64_t from_step = 0;       // of the snapshot that the group goes on from
    double bytes_per_second = 0;  // that sending may take until hurry(); 0: no limit
  };
  // What an earlier group of this run had not finished is dropped, but for what is to be kept and not after
  // from_step: the group writes the rest again.
  void begin(const Group& group);
  // The scheduler's store has moved there, if the group has one.
  void store_at(const comm::control::SchedulerAddress& store);
  // These nodes may offer and fetch here, too (Admit).
  void admit(const std::vector<comm::control::HolderT>& holders);

  // Puts the files `names` of a snapshot into `folder`, which is made if need be: those that are there and
  // right stay, others are linked from what this node holds, or fetched from the snapshot's holders, one after
  // the other, until one has what is right. What was fetched counts as held here from then on (SnapshotHeld).
  // `check` is called several times a second, and may throw. Error if a file cannot be had.
  void bring(const comm::Snapshot& snapshot, std::span<const std::string> names,
             const std::filesystem::path& folder, const std::function<void()>& check);

  // A snapshot that this rank has written: `files` in `folder`, complete. Returns at once.
  void take(uint64_t step, bool keep, const std::filesystem::path& folder, std::vector<std::string> files);

  // Training does not use the link now: files are sent as fast as it allows, until the next begin().
  void hurry();
  // Files are on their way that nobody else has yet, or that the scheduler's store shall have; none of them has
  // failed so far.
  bool is_sending() const;

  // The scheduler needs no snapshot of the run before `step` any more: removes what is held of them, and the
  // folders of own ones but for those to keep. What is to be kept stays here until the scheduler's store has
  // it.
  void stable(uint64_t run, uint64_t step);

  // Whether it said so of `step` of the present run, or of a later one.
  bool is_stable(uint64_t step) const;

  // Waits until the snapshot of `step` is held (SnapshotHeld was called); false if that takes longer.
  bool wait_until_held(uint64_t step, double seconds) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace modelet::agent
