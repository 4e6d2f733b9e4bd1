// TrainedWorkload: small runs of the real trainer, in several variants. What a group learns depends on where
// it begins and on which rank has which modelet, but on nothing else. So an undisturbed group with the same
// beginning and the same placement shows what is right, bit by bit.
//
// Of index.json everything is compared but the time that the training took. Not compared are the files of a
// group of several replicas that was stopped early, which settles where others do not, and the index of a
// group that was stopped before it evaluated an epoch.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "node_agent/train/job/train_job.h"
#include "tests/simulation/workload.h"

namespace modelet::simulation {

using Bytes = std::map<comm::ContentId, std::string>;  // of files

// What all histories share: the data, and what undisturbed groups learn.
class TrainedRuns {
 public:
  static constexpr uint64_t kKinds = 8;

  TrainedRuns();  // in a temporary folder
  TrainedRuns(const TrainedRuns&) = delete;
  TrainedRuns& operator=(const TrainedRuns&) = delete;
  ~TrainedRuns();

  const std::filesystem::path& folder() const { return folder_; }
  const DataShape& shape() const { return shape_; }
  Experiment experiment(uint64_t kind) const;

  struct Undisturbed {
    std::map<uint64_t, Workload::Files> snapshots;              // the modelets, by step
    std::map<uint64_t, nlohmann::json> indices;                 // without times, by step
    std::map<std::pair<std::string, uint64_t>, double> losses;  // by event and step
  };
  // What the group of this job writes and reports. `from`: where it begins; its files are among `bytes`.
  const Undisturbed& undisturbed(const agent::TrainJob& job, const std::optional<comm::Snapshot>& from,
                                 const Bytes& bytes);

 private:
  std::filesystem::path folder_;
  DataShape shape_;
  std::map<std::string, Undisturbed> undisturbed_;
};

class TrainedWorkload final : public Workload {
 public:
  TrainedWorkload(TrainedRuns& runs, World& world);
  ~TrainedWorkload() override;

  msg::SubmitT submission(const std::string& name, RunSpec& spec, uint32_t nodes, uint32_t output_modelets,
                          uint64_t kind) override;
  std::shared_ptr<Job> make_job(JobSurroundings around, const msg::PrepareT& prepare) override;
  void prepared(const msg::PrepareT& prepare) override;
  Files files(uint64_t run, uint32_t epoch, uint64_t step) override;

  // Where a node has its files.
  std::filesystem::path folder_of(const std::string& node) const { return folder_ / node; }
  // A rank has written a file of a snapshot. Returns its address.
  comm::ContentId wrote(uint64_t run, uint32_t epoch, uint64_t step, const std::string& name,
                        std::string bytes);
  // Rank 0 has reported a loss in an event of this name.
  void reported(uint64_t run, uint32_t epoch, const std::string& event, uint64_t step, double loss);
  // Puts files of a snapshot into a folder. Throws Error if they cannot be written.
  void write_files(const comm::Snapshot& snapshot, std::span<const std::string> names,
                   const std::filesystem::path& folder) const;

 private:
  struct Group {
    agent::TrainJob job;
    std::optional<comm::Snapshot> from;
  };
  // Null: the group goes on from files that no rank has written.
  const TrainedRuns::Undisturbed* undisturbed(uint64_t run, uint32_t epoch);
  // Null: nothing is known of that step.
  const Files* undisturbed_files(uint64_t run, uint32_t epoch, uint64_t step);
  void check(uint64_t run, uint32_t epoch, uint64_t step, const std::string& name);
  void check_index(uint64_t run, uint32_t epoch, uint64_t step, const std::string& index);

  TrainedRuns& runs_;
  World& world_;
  const std::filesystem::path folder_;  // of this history
  Bytes bytes_;
  std::map<std::pair<uint64_t, uint32_t>, Group> groups_;              // (run, epoch)
  std::map<std::tuple<uint64_t, uint32_t, uint64_t>, Files> written_;  // (run, epoch, step)
};

}  // namespace modelet::simulation
