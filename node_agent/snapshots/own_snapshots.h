// OwnSnapshots: the snapshots that this node has written or brought, and what is to be done next for each of
// them: put its files into this node's store, send each file to another node, report that, and send what is
// to be kept to the scheduler's store. It only decides: the time is an argument, and its driver does the
// tasks and says how each one ended. SnapshotSender drives it with disks and sockets, the histories of
// tests/simulation without. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "comm/content/content.h"
#include "comm/control/control.h"

namespace modelet::comm {
class StoredContent;
}

namespace modelet::agent {

// A file in this node's store.
struct HeldFile {
  std::string name;
  comm::ContentId content;
  uint64_t bytes = 0;
  std::vector<std::string> holders = {};            // other nodes that are known to have it
  std::shared_ptr<comm::StoredContent> entry = {};  // open, so that the store does not remove it
};

class OwnSnapshots {
 public:
  struct Surroundings {
    std::string node;
    bool store_is_here = false;  // the scheduler's store is on this machine, and holds the files of this node
    double retry_seconds = 2;    // before a new attempt after a failure
    std::function<void(comm::control::SnapshotHeldT)> report;
    std::function<void(const std::string&)> warn;
  };
  explicit OwnSnapshots(Surroundings surroundings) : around_(std::move(surroundings)) {}

  // What it needs to know of SnapshotService::Group.
  struct Group {
    uint64_t pool = 0, run = 0;
    uint32_t epoch = 0, rank = 0;
    std::vector<std::string> members = {};
    std::set<std::string> holders = {};  // nodes that can be asked to hold files; not this one
    bool has_store = false;              // of the scheduler
    uint64_t from_step = 0;
  };
  // As in SnapshotService.
  void begin(const Group& group);
  void take(uint64_t step, bool keep, std::filesystem::path folder, std::vector<std::string> files);
  void stable(uint64_t run, uint64_t step);
  // This node is to leave: the newest snapshot of each run goes to the scheduler's store as well, because the others may
  // leave with it.
  void leave() { leaves_ = true; }
  void brought(uint64_t run, uint64_t step, bool keep, std::filesystem::path folder,
               std::vector<HeldFile> files);

  struct Adopt {            // puts a file into this node's store
    uint64_t snapshot = 0;  // its number here
    std::filesystem::path folder;
    std::string name;
  };
  struct Send {  // sends a file to another node, or to the scheduler's store if `to` is empty
    uint64_t snapshot = 0, run = 0, step = 0;
    HeldFile file;
    std::string to;
  };
  struct Repair {  // reads a file that could not be sent, and fetches it from its holders if it is damaged
    uint64_t snapshot = 0, run = 0, step = 0;
    HeldFile file;
  };
  using Task = std::variant<Adopt, Send, Repair>;
  // Returns the next task, or nothing if there is none now. Reports snapshots that have become complete. How
  // Adopt and Send ended has to be reported below; until then next() may return them again. A Repair is tried once
  // after a failure, and only its failure is reported.
  std::optional<Task> next(double now);
  void adopted(const Adopt& task, HeldFile file);
  void sent(const Send& task);
  void failed(double now, const Task& task, const std::string& why);
  // The file could not be read here. This says nothing about the node that was to get it.
  void could_not_read(double now, const Send& task, const std::string& why);

  bool has_work(double now) const;  // after a failure a snapshot waits for a while
  bool is_sending() const;          // as in SnapshotService
  // The steps of the present run's snapshots that are held.
  const std::set<uint64_t>& held_steps() const { return held_steps_; }
  std::set<comm::ContentId> contents() const;  // of all files

  // A snapshot that is not needed here any more.
  struct Forgotten {
    std::vector<comm::ContentId> contents;  // some may be needed for another snapshot
    std::filesystem::path folder;           // its files `names` may go as well; empty: they stay
    std::vector<std::string> names;
  };
  std::vector<Forgotten> take_forgotten() { return std::exchange(forgotten_, {}); }  // since the last call

 private:
  // Written here; reported as written here; held by enough nodes, and reported so.
  enum class Stage : uint8_t { kWritten, kReported, kHeld };
  struct Snapshot {
    bool is_held() const { return stage == Stage::kHeld; }

    uint64_t number = 0, run = 0;
    uint32_t epoch = 0, rank = 0;
    uint64_t step = 0;
    bool keep = false;
    std::filesystem::path folder = {};
    std::vector<std::string> names = {};  // of files
    std::vector<HeldFile> files = {};     // the first of `names`, whose content is known already
    Stage stage = Stage::kWritten;
    bool is_stored = false;              // in the scheduler's store, or given up
    std::set<std::string> refused = {};  // nodes that did not take the file that is sent now
    std::string complaints = {};         // theirs
    bool is_suspect = false;             // a file that others hold could not be sent: it may be damaged
    double retry_at = 0;
    uint64_t failures = 0;
  };
  bool wants_store(const Snapshot& snapshot) const;
  bool is_newest(const Snapshot& snapshot) const;
  bool is_alone() const;
  bool is_due(const Snapshot& snapshot, double now) const;
  Snapshot* next_due(double now);
  Snapshot* find(uint64_t number);
  std::optional<Task> task_of(Snapshot& snapshot, double now);
  std::optional<Task> send(Snapshot& snapshot, const HeldFile& file, double now);
  std::vector<std::string> candidates(const Snapshot& snapshot, double now) const;
  void fail(Snapshot& snapshot, double now, const std::string& why);
  void drop_superseded();
  void report(const Snapshot& snapshot);
  void mark_held(Snapshot& snapshot);
  void forget(const Snapshot& snapshot, bool with_folder);

  Surroundings around_;
  Group group_;
  uint64_t numbers_ = 0;
  std::deque<Snapshot> snapshots_;           // the oldest first
  std::map<std::string, double> failed_at_;  // nodes that did not take a file -> when
  std::set<uint64_t> held_steps_;            // of group_.run
  std::vector<Forgotten> forgotten_;
  bool leaves_ = false;
};

}  // namespace modelet::agent
