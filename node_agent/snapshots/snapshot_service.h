// SnapshotService: this node's part in keeping the snapshots of a run (comm/content/snapshot.h). It sends
// this node's own files to other nodes, and holds files of other nodes for them.
//
// It has a folder of files that are identified by their content (comm/content/store.h), and a port for data
// (comm/content/transfer/data_server.h), where only the nodes that the scheduler has named may offer and
// fetch. A file that this node has written is in that folder as a hard link: nothing is copied, and the
// writer may remove its own name of the file at any time.
//
//   snapshots.begin(group)            a Prepare has arrived: who the others are
//   snapshots.bring(snapshot, ...)    before the job starts: fetches the files that its rank needs
//   snapshots.take(step, ...)         a snapshot is written: sends it, then reports SnapshotHeld
//   snapshots.hurry()                 the run waits for what is still to be sent
//   snapshots.stable(run, step)       older snapshots are not needed any more
//
// The service sends on a thread of its own, at a limited rate. Each file goes to one other member of the
// group, the node's partner (holder_order.h says why). If the partner fails, the next member takes its place.
// A group of one sends its files to the scheduler's store. From every group, what is to be kept goes there as
// well. If nobody takes a file, or this disk is full, the service logs a warning and tries again until there is
// a newer snapshot. A run never fails because of that.
//
// Threads: any thread may call all functions. bring() works on the caller's thread. `held` is called on the
// service's own thread.
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

struct SnapshotServiceOptions {
  std::string node;                     // name of this node
  std::filesystem::path folder;         // of the files that it holds; used by this process alone
  uint64_t bytes = uint64_t{32} << 30;  // limit of that folder, but at most half of its disk; --snapshot-mib
  // The folder of the scheduler's store, if it is on this machine: files get there as hard links, and need
  // no other holder. Empty: files are sent.
  std::filesystem::path local_store = {};
  std::string listen = "tcp://127.0.0.1:*";  // endpoint of the port for data: its host, or "ipc://FOLDER/*"
  std::optional<comm::KeyPair> key = {};     // with which this node sends and fetches; empty: no keys
  // What is sent counts against `sending`, which the machine's other traffic shares. Null: no limit.
  std::shared_ptr<comm::RateLimit> sending = {};
  double fetch_bytes_per_second = 0;  // 0: no limit
  double retry_seconds = 2;           // before a new attempt after a failure
  double give_up_seconds = 60;        // silence after which another node counts as gone
};

class SnapshotService {
 public:
  // `held` takes SnapshotHeld messages for the scheduler. A snapshot is reported again when it has more
  // holders.
  using Held = std::function<void(comm::control::SnapshotHeldT)>;

  // Binds, and starts the thread. Throws like DataServer.
  SnapshotService(SnapshotServiceOptions options, Held held);
  SnapshotService(const SnapshotService&) = delete;
  SnapshotService& operator=(const SnapshotService&) = delete;
  ~SnapshotService();

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
    // The scheduler's port for data; empty: it has no store.
    std::optional<comm::control::SchedulerAddress> store = {};
    uint64_t from_step = 0;       // step of the snapshot that the group goes on from
    double bytes_per_second = 0;  // limit for sending until hurry(); 0: no limit
  };
  // This node now belongs to `group`. Work that an earlier group of this run had not finished is dropped,
  // except for snapshots that are to be kept and are not after from_step: the group writes the others
  // again.
  void begin(const Group& group);
  // The scheduler's store has moved there. Ignored if the group has no store.
  void store_at(const comm::control::SchedulerAddress& store);
  // These nodes may offer and fetch here as well (Admit).
  void admit(const std::vector<comm::control::HolderT>& holders);

  // Puts the files `names` of a snapshot into `folder`, which is made if needed. Files that are there and
  // right stay. Others are linked from what this node holds, or fetched from the snapshot's holders, one
  // after the other, until one has the right file. Fetched files count as held here from then on
  // (SnapshotHeld). `check` is called several times a second, and may throw. Throws Error if a file cannot
  // be had.
  void bring(const comm::Snapshot& snapshot, std::span<const std::string> names,
             const std::filesystem::path& folder, const std::function<void()>& check);

  // Takes a snapshot that this rank has written: `files` in `folder`, complete. Returns at once.
  void take(uint64_t step, bool keep, const std::filesystem::path& folder, std::vector<std::string> files);

  // Training does not use the link now, so files are sent as fast as the link allows, until the next
  // begin().
  void hurry();
  // This node is to leave: the newest snapshot goes to the scheduler's store as well, because the others may leave with
  // it.
  void leave();
  // Whether files are under way that nobody else has yet or that must still get to the scheduler's store,
  // and none of them has failed so far.
  bool is_sending() const;

  // The scheduler needs no snapshot of the run before `step` any more. Removes what is held of them, and
  // the folders of this node's own ones except those to keep. A snapshot that is to be kept stays here
  // until the scheduler's store has it.
  void stable(uint64_t run, uint64_t step);

  // Whether stable() was called with `step` or a later one for the present run, or the run went on from
  // there.
  bool is_stable(uint64_t step) const;

  // Waits until the snapshot of `step` is held (SnapshotHeld was reported). Returns false if that takes
  // longer than `seconds`.
  bool wait_until_held(uint64_t step, double seconds) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace modelet::agent
