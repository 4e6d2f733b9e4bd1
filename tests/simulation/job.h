// Job: one rank of a run, whose training is a chain of hashes. After each step, the state of a modelet
// depends on the states of all modelets before the step. A rank knows only its own modelets (by the owner
// vector), so in each step it needs a message from every other rank. Its Prepare, Start, Stop, snapshots and
// reports are those of a real job.
//
// If messages do not come, the rank goes on waiting and reports whom it misses, and whom it hears again
// (PeerMissed).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation/disk.h"
#include "tests/simulation/keeper.h"
#include "tests/simulation/mutants.h"
#include "tests/simulation/network.h"
#include "tests/simulation/promises.h"

namespace modelet::simulation {

// What a rank sends to every other rank in a step.
struct RankMessage {
  uint64_t run = 0;
  uint32_t epoch = 0, rank = 0;
  uint64_t step = 0;   // that is completed
  uint64_t total = 0;  // sum of the contributions of its modelets
  bool stop = false;   // the rank was asked to end after this step
};

// Something at an address that has ranks.
class RankHost {
 public:
  virtual ~RankHost() = default;
  virtual Host& host() = 0;
  virtual bool received(const RankMessage& message) = 0;  // false: no such rank listens yet
};

struct JobSurroundings {
  World& world;
  Network& network;
  Promises& promises;
  Host& host;
  Disk& disk;
  Keeper& keeper;
  std::string endpoint;                                        // of this node
  std::function<RankHost*(const std::string& endpoint)> find;  // null: no node has that address
  std::function<void(msg::ToSchedulerMessage)> report;
  Mutant mutant = Mutant::kNone;
};

class Job : public std::enable_shared_from_this<Job> {
 public:
  Job(JobSurroundings surroundings, const msg::PrepareT& prepare);

  void prepare();
  void start(const msg::StartT& start);
  void stop() { stop_asked_ = true; stop_if_waiting(); }
  void abort(const std::string& reason);
  bool received(const RankMessage& message);
  void vanish() { over_ = true; }  // its process has died
  uint64_t step() const { return step_; }

 private:
  void brought(bool good, const comm::Snapshot& snapshot);
  void begin_step();
  void complete_if_all_here();
  void look_for_missing();
  void report_missed(uint32_t rank, bool over);
  bool write_snapshot(bool keep);
  void end_well(msg::Outcome outcome);
  void end(msg::Outcome outcome, const std::string& why, bool retry);
  void stop_if_waiting();
  void publish();
  bool is_over() const { return over_; }
  // Calls `what` after some time, unless the job is over then.
  void later(double seconds, void (Job::*what)());

  JobSurroundings around_;
  const msg::PrepareT prepare_;
  const RunSpec spec_;
  std::map<uint32_t, uint64_t> states_;  // own modelets
  uint64_t run_state_ = 0, step_ = 0;
  std::vector<RankHost*> ranks_;
  std::map<uint64_t, std::map<uint32_t, RankMessage>> messages_;  // step -> rank
  std::set<uint32_t> missed_;                                     // ranks
  double waits_since_ = 0;
  bool is_training_ = false, is_computed_ = false, stop_asked_ = false, over_ = false;
  double linger_until_ = 0;  // messages under way are still delivered until then
};

}  // namespace modelet::simulation
