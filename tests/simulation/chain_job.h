// ChainJob: a job whose training is a chain of hashes (chain_workload.h). After each step, the state of a
// modelet depends on the states of all modelets before the step. A rank knows only its own modelets (by the
// owner vector), so in each step it needs a message from every other rank. Its Prepare, Start, Stop, snapshots
// and reports are those of a real job.
//
// If messages do not come, the rank goes on waiting and reports whom it misses, and whom it hears again
// (PeerMissed).
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation/chain_workload.h"
#include "tests/simulation/job.h"

namespace modelet::simulation {

class ChainJob final : public Job {
 public:
  ChainJob(JobSurroundings surroundings, const msg::PrepareT& prepare, ChainWorkload& workload)
      : Job(std::move(surroundings), prepare), workload_(workload), has_owners_(has_owners(prepare)),
        owners_per_round_(has_owners_ ? owners_per_round(prepare) : 0) {}

  void prepare() override;
  void start(const msg::StartT& start) override;
  void stop() override {
    stop_asked_ = true;
    stop_if_waiting();
  }
  void abort(const std::string& reason) override;
  bool received(const RankMessage& message) override;
  void vanish() override { over_ = true; }
  uint64_t step() const override { return step_; }

 private:
  void brought(bool good, const comm::Snapshot& snapshot);
  void begin_step();
  void complete_if_all_here();
  void look_for_missing();
  bool write_snapshot(bool keep);
  void end_well(msg::Outcome outcome);
  void end(msg::Outcome outcome, const std::string& why, bool retry);
  void stop_if_waiting();
  void publish();
  bool takes_part() const;
  bool is_over() const { return over_; }
  bool has_modelet(uint32_t i) const { return has_owners_ || prepare_.owner[i] == prepare_.rank; }
  // Calls `what` after some time, unless the job is over then.
  void later(double seconds, void (ChainJob::*what)());
  std::shared_ptr<ChainJob> self() { return std::static_pointer_cast<ChainJob>(shared_from_this()); }

  ChainWorkload& workload_;
  const bool has_owners_;                // each has all modelets
  const uint32_t owners_per_round_;
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
