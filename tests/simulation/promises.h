// Promises: what must hold in every history. The workload knows what undisturbed runs do; each file that is
// held is compared with that.
//
//   - a submission is one run, however often it is sent; run numbers are never used again, an accepted run is
//     never forgotten, a run that has ended never changes;
//   - no two groups have the same epoch of a run, and no group publishes after a later one has;
//   - a snapshot that is called stable lies on as many disks as promised, and a group can find the files that
//     it continues from;
//   - every run ends well once the faults have ended, and the files of a finished run are in the store;
//   - each task of a run of tasks has one result, which stays and is what this task would be undisturbed; nodes that work
//     for a task which has ended stop soon; runs whose tasks wait take turns;
//   - if nothing else happens, a run that a user stops ends soon, and the files of its last step are safe.
// Missing files are excused only if disks were destroyed. A copy that was never reported to the scheduler does
// not count.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/content/snapshot.h"
#include "comm/control/control.h"
#include "comm/control/snapshot_tables.h"
#include "scheduler/core/core.h"
#include "tests/simulation/workload.h"
#include "tests/simulation/world.h"

namespace modelet::simulation {

class Promises {
 public:
  Promises(World& world, Workload& workload, bool has_store)
      : world_(world), workload_(workload), has_store_(has_store) {}

  void add(const std::string& run, RunSpec spec) { specs_[run] = spec; }
  const RunSpec& spec(const std::string& run) const {  // of a run, or of a task of a run
    const auto known = specs_.find(run);
    return known == specs_.end() ? specs_.at(run.substr(0, run.find('.'))) : known->second;
  }

  // ---- disks; `node` is the name of a node, or "" for the store
  void written(const std::string& node, uint64_t run, const comm::ContentId& content);
  void removed(const std::string& node, uint64_t run, const comm::ContentId& content);  // no longer needed
  void destroyed(const std::string& node, uint64_t run, const comm::ContentId& content);  // by a fault
  // With the disk of a node that was released. Without a store, the files of runs that have ended may go like that.
  void given_away(const std::string& node, uint64_t run, const comm::ContentId& content);
  void announced(const std::string& node);  // the scheduler has heard that this node has left
  void returned(const std::string& node);   // the scheduler has heard that it is back; not what its disk has lost

  // ---- what happens
  void stepped(uint64_t run);                       // a node works for it
  void nothing_else_happens() { is_calm_ = true; }  // except that users submit and stop runs
  void disturbed() { is_disturbed_ = true; }  // the first fault that is no wish of a user
  void asked_to_stop(uint64_t run);                 // the scheduler was asked to stop it
  void sent(const std::string& peer, const msg::FromSchedulerMessage& message);
  void accepted(const std::string& run, uint64_t number);  // a client was told this number of its run
  void persisted(const scheduler::Records& records);
  void running(const std::vector<msg::RunStatusT>& runs);
  // At the end of a history. `files`: what RunFiles lists.
  void ended(const msg::RunStatusT& run, const std::vector<comm::Snapshot>& files, bool may_be_stopped);

 private:
  // The state of a file on a disk.
  enum class Copy : uint8_t { kThere, kRemoved, kDestroyed, kAnnounced };
  struct Copies {
    size_t there = 0, removed = 0, destroyed = 0;
  };
  using Content = std::pair<uint64_t, comm::ContentId>;  // (run, address)
  Copies copies(const Content& content) const;
  // The snapshot of a step, and the epoch of the group that has made it.
  struct Made {
    uint32_t epoch = 0;
    uint64_t step = 0;
  };
  std::string lost_file(uint64_t run, Made snapshot);  // a file that only destroyed disks had; "": none
  void check_prepare(const std::string& peer, const msg::PrepareT& message);
  void check_snapshot(uint64_t id, const comm::Snapshot& snapshot);
  void check_stable(const msg::StableT& message);
  void check_stop(uint64_t run);
  bool has_lost_files(uint64_t run);  // of its stable snapshot, or of the one that it continued from
  void check_event(const scheduler::RunEventRecord& event);
  void check_results(uint64_t run, const std::vector<uint64_t>& results);
  void check_turns(const std::vector<msg::RunStatusT>& runs);

  World& world_;
  Workload& workload_;
  const bool has_store_;
  std::map<std::string, RunSpec> specs_;
  std::map<Content, std::map<std::string, Copy>> copies_;                   // content -> disk -> state
  std::map<uint64_t, std::string> names_;                                   // run -> name, of its groups
  std::map<uint64_t, std::string> named_;                                   // run -> name, as listed
  std::map<std::string, uint64_t> numbers_;                                 // name -> run, as listed
  std::map<uint64_t, uint32_t> epochs_, sizes_;                             // run -> of its newest group
  std::map<std::tuple<uint64_t, uint32_t, uint32_t>, std::string> groups_;  // (run, epoch, rank) -> its Prepare
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> published_;             // run -> (epoch, step)
  std::map<uint64_t, uint64_t> events_;                                     // run -> number of the last one
  std::map<uint64_t, Made> stable_;                                         // run -> its last stable snapshot
  std::map<uint64_t, comm::Snapshot> went_on_from_;                         // run -> snapshot that its newest group got
  std::set<uint64_t> accepted_, ended_;
  std::set<uint64_t> excused_;  // had lost files when they ended; a run of the same name may write them again
  std::map<uint64_t, uint64_t> parents_;               // task -> its run
  std::map<uint64_t, std::vector<uint64_t>> results_;  // run of tasks -> the results that were written down
  std::map<uint64_t, double> task_ends_;               // task -> when it ended, while nothing else happens
  std::map<uint64_t, uint32_t> begun_;                 // run of tasks -> how many of its tasks have begun
  std::map<uint64_t, double> waits_since_;             // run of tasks -> since when some of them wait
  std::map<uint64_t, uint32_t> limits_;                // run -> how many nodes it wants
  bool is_calm_ = false, is_disturbed_ = false;
  std::map<uint64_t, double> stops_;  // run -> when it was asked to stop
};

}  // namespace modelet::simulation
