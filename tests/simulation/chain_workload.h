// ChainWorkload: runs whose state is a chain of hashes, so that thousands of histories take a minute. A step
// mixes what all modelets had before it, so a single wrong message shows in all of them. The true states of a
// run follow from its name alone: an undisturbed run is computed here, in a few lines. Those of a run of owners of
// private data also follow from which owners each of its groups has, which of them take part in a round, and from what the
// group begins with.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "node_agent/replicas/participants.h"
#include "tests/simulation/workload.h"

namespace modelet::simulation {

// The states of a run after one step: one for each modelet, and one for the run itself.
struct ChainState {
  std::vector<uint64_t> modelets;
  uint64_t run = 0;
};
uint64_t contribution(uint32_t modelet, uint64_t state);
uint64_t contribution_of_owner(const std::string& owner, uint64_t run_state);
// Who takes part in the round after a step: every step is a round.
uint32_t owners_per_round(const msg::PrepareT& prepare);
agent::ReplicaSet participants(const std::string& run, uint64_t step, size_t owners, uint32_t count);
uint64_t next_modelet_state(uint64_t state, uint64_t total);
uint64_t next_run_state(uint64_t state, uint64_t total);
ChainState first_state(const std::string& run, size_t modelets);

// The address of a file of a snapshot. It encodes the content of the file.
comm::ContentId content_of(uint64_t step, uint64_t file, uint64_t value);
uint64_t value_in(const comm::ContentId& content);
std::string modelet_file(size_t modelet);
inline constexpr const char* kRunFile = "index.json";
inline constexpr uint64_t kRunFileNumber = UINT32_MAX;  // no number of a modelet

class ChainWorkload final : public Workload {
 public:
  static constexpr uint64_t kKinds = 4;  // with all nodes, with some, of tasks, and of owners

  explicit ChainWorkload(World& world) : world_(world) {}

  msg::SubmitT submission(const std::string& name, RunSpec& spec, uint32_t nodes, uint32_t output_modelets,
                          uint64_t kind) override;
  std::shared_ptr<Job> make_job(JobSurroundings around, const msg::PrepareT& prepare) override;
  void prepared(const msg::PrepareT& prepare) override;
  Files files(uint64_t run, uint32_t epoch, uint64_t step) override;

  // A rank of this group has these states after a step.
  void stepped(const msg::PrepareT& group, uint64_t step, const std::map<uint32_t, uint64_t>& modelets,
               uint64_t of_run);

  size_t began_with(uint64_t run) const { return owners_.at(run).size(); }  // owners
  // What a node that has worked for a run of owners has in its memory: for mutants.
  struct Memory {
    uint64_t step = 0, of_run = 0;
  };
  Memory& memory(const std::string& node, uint64_t run) { return memories_[{node, run}]; }

 private:
  // What one group does, or all groups of a run without owners.
  struct Course {
    std::vector<std::string> owners = {};
    uint32_t owners_per_round = 0;
    uint64_t first_step = 0;
    std::vector<ChainState> states;  // [step - first_step]
  };
  Course& course(uint64_t run, uint32_t epoch) {
    return courses_.contains({run, epoch}) ? courses_.at({run, epoch}) : truths_.at(names_.at(run));
  }
  const ChainState& truth(uint64_t run, uint32_t epoch, uint64_t step);
  void check_owners(const msg::PrepareT& prepare);

  World& world_;
  std::map<std::string, Course> truths_;
  std::map<std::pair<uint64_t, uint32_t>, Course> courses_;  // (run, epoch), of runs of owners
  std::map<uint64_t, std::set<std::string>> owners_;         // of runs of owners: those with which it began
  std::map<uint64_t, std::string> names_;                    // of runs
  std::map<std::pair<std::string, uint64_t>, Memory> memories_;  // (node, run)
};

inline bool has_owners(const msg::PrepareT& prepare) { return prepare.experiment.find("private:") != std::string::npos; }

}  // namespace modelet::simulation
