// Promises: what must hold in every history, and the truth that histories are compared with.
//
// The true states of a run follow from its name alone. An undisturbed run is computed here, in a few lines.
// Each state that a job reaches, each file that is held and each event that is published is compared with it.
//
//   - every step of every job has the state of the undisturbed run;
//   - a submission is one run, however often it is sent; run numbers are never used again, an accepted run is
//     never forgotten, a run that has ended never changes;
//   - no two groups have the same epoch of a run, and no group publishes after a later one has;
//   - a snapshot that is called stable lies on as many disks as promised, and a group can find the files that
//     it continues from;
//   - every run ends well once the faults have ended, and the files of a finished run are in the store;
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
#include "scheduler/core/core.h"
#include "tests/simulation/world.h"

namespace modelet::simulation {

namespace msg = comm::control;

// What the jobs of a run do, apart from what the experiment says.
struct RunSpec {
  uint64_t steps = 0, snapshot_every = 1;
  double step_seconds = 0.1;
};

// The states of a run after one step: one for each modelet, and one for the run itself. A step mixes what all
// modelets had before it, so a single wrong message shows in all of them.
struct TrueState {
  std::vector<uint64_t> modelets;
  uint64_t run = 0;
};
uint64_t contribution(uint32_t modelet, uint64_t state);
uint64_t next_modelet_state(uint64_t state, uint64_t total);
uint64_t next_run_state(uint64_t state, uint64_t total);
TrueState first_state(const std::string& run, size_t modelets);

// The address of a file of a snapshot. It encodes the content of the file.
comm::ContentId content_of(uint64_t step, uint64_t file, uint64_t value);
uint64_t value_in(const comm::ContentId& content);
std::string modelet_file(size_t modelet);
inline constexpr const char* kRunFile = "index.json";
inline constexpr uint64_t kRunFileNumber = UINT32_MAX;  // no number of a modelet

class Promises {
 public:
  Promises(World& world, bool has_store) : world_(world), has_store_(has_store) {}

  void add(const std::string& run, RunSpec spec) { specs_[run] = spec; }
  const RunSpec& spec(const std::string& run) const { return specs_.at(run); }

  // ---- disks; `node` is the name of a node, or "" for the store
  void written(const std::string& node, uint64_t run, const comm::ContentId& content);
  void removed(const std::string& node, uint64_t run, const comm::ContentId& content);  // no longer needed
  void destroyed(const std::string& node, uint64_t run, const comm::ContentId& content);  // by a fault
  void announced(const std::string& node);  // the scheduler has heard that this node has left
  void returned(const std::string& node);   // the scheduler has heard that it is back; not what its disk has lost

  // ---- what happens
  void nothing_else_happens() { is_calm_ = true; }  // except that users submit and stop runs
  void asked_to_stop(uint64_t run);                 // the scheduler was asked to stop it
  void stepped(const std::string& run, uint64_t step, const std::map<uint32_t, uint64_t>& modelets, uint64_t of_run);
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
  const TrueState& truth(const std::string& run, uint64_t step);
  std::map<std::string, comm::ContentId> files_of(const std::string& run, uint64_t step);
  using Content = std::pair<uint64_t, comm::ContentId>;  // (run, address)
  Copies copies(const Content& content) const;
  std::string lost_file(uint64_t run, uint64_t step);  // a file that only destroyed disks had; "": none
  void check_prepare(const std::string& peer, const msg::PrepareT& message);
  void check_snapshot(uint64_t id, const comm::Snapshot& snapshot);
  void check_stable(const msg::StableT& message);
  void check_stop(uint64_t run);
  bool has_lost_files(uint64_t run);  // of its stable snapshot, or of the one that it continued from
  void check_event(const scheduler::RunEventRecord& event);

  World& world_;
  const bool has_store_;
  std::map<std::string, RunSpec> specs_;
  std::map<std::string, std::vector<TrueState>> truths_;                    // [step]
  std::map<Content, std::map<std::string, Copy>> copies_;                   // content -> disk -> state
  std::map<uint64_t, std::string> names_;                                   // run -> name, of its groups
  std::map<uint64_t, std::string> named_;                                   // run -> name, as listed
  std::map<std::string, uint64_t> numbers_;                                 // name -> run, as listed
  std::map<uint64_t, uint32_t> epochs_, sizes_;                             // run -> of its newest group
  std::map<std::tuple<uint64_t, uint32_t, uint32_t>, std::string> groups_;  // (run, epoch, rank) -> its Prepare
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> published_;             // run -> (epoch, step)
  std::map<uint64_t, uint64_t> events_;                                     // run -> number of the last one
  std::map<uint64_t, uint64_t> stable_;                                     // run -> step
  std::map<uint64_t, comm::Snapshot> went_on_from_;                         // run -> snapshot that its newest group got
  std::set<uint64_t> accepted_, ended_;
  std::set<uint64_t> excused_;  // had lost files when they ended; a run of the same name may write them again
  bool is_calm_ = false;
  std::map<uint64_t, double> stops_;  // run -> when it was asked to stop
};

}  // namespace modelet::simulation
