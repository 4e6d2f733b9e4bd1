// Training: a run from its first step to its last. Trainer::prepare() makes it. It holds everything that
// outlives the group. Used by the training thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "node_agent/replicas/rank_grid.h"
#include "node_agent/replicas/replica_sync.h"
#include "node_agent/step/exchange/rounds.h"
#include "node_agent/step/exchange/sharding.h"
#include "node_agent/step/training_step.h"
#include "node_agent/train/data/training_data.h"
#include "node_agent/train/evaluation/evaluator.h"
#include "node_agent/train/evaluation/model_selection.h"
#include "node_agent/train/progress/run_statistics.h"
#include "node_agent/train/progress/schedule.h"
#include "node_agent/train/progress/snapshot_budget.h"
#include "node_agent/train/run_checkpoints.h"
#include "node_agent/train/trainer.h"
#include "shard/layers/network.h"

namespace modelet::agent {

class Trainer::Training {
 public:
  Training(const TrainJob& job, const Clock& clock, Outside& outside, const EventSink& events);

  void run(comm::Group& group, const EventSink& events, const SnapshotSink& snapshots);

 private:
  // What lives only as long as the group.
  struct Session {
    RankGrid& grid;
    const EventSink& events;
    const SnapshotSink& snapshots;
    StepTrace& trace;
    TrainingStep step;
    Evaluator evaluator;
    double reported;                       // time of the last event about progress
    std::optional<SnapshotBudget> budget;  // rank 0 only, if snapshots are made by a budget
    uint32_t to_trace = 0;                 // rank 0 only: steps that are still to be traced
    bool traces_next = false;              // all ranks trace the next step
    bool stops = false;                    // all ranks know that the run stops after this step
    size_t warned_of = 0;                  // replicas whose rows were refused
    bool warned_late = false;              // warned that snapshots take longer than cluster.snapshot_every
    std::optional<std::filesystem::path> last =
        {};  // the run's last checkpoint, once only the test is left to do
  };

  using Purpose = RunCheckpoints::Purpose;
  // What all ranks do after a step.
  struct Due {
    bool stop = false, snapshot = false;
  };

  void restore(const RunCheckpoints::RunState& state);
  void restore_numbers(const std::vector<std::vector<double>>& of_ranks);
  std::optional<SnapshotBudget> snapshot_budget() const;
  Due one_step(Session& session);
  bool synchronise(Session& session, bool stop);
  void plan_trace(Session& session);
  void report_trace(Session& session) const;
  void fit_classifiers(Session& session);
  void save_after_step(Session& session, Due due);
  void snapshot(Session& session);
  void end_epoch(Session& session, Due due);
  void save_after_epoch(Session& session, Due due);
  void evaluate(Session& session, nlohmann::json& event);
  void test(Session& session, comm::Tag tag);
  void checkpoint(Session& session, comm::Tag tag, Purpose purpose);
  bool wait_for_room(Session& session, comm::Tag tag) const;
  [[noreturn]] void end_early(Session& session);
  [[noreturn]] void end_in_evaluation(Session& session);
  void weigh_owners(RankGrid& grid) const;
  void draw_participants(RankGrid& grid) const;
  StepResult learn(Session& session);
  void go_through(Session& session);
  void go_on_with_epoch(Session& session);
  void throw_if_stopped() const;
  void finish(Session& session);

  void report_start(Session& session);
  void report_step(Session& session);
  Evaluator::Progress report_evaluation(Session& session, const std::string& data);
  nlohmann::json progress(Session& session, std::optional<double> loss) const;
  void add_refused(Session& session, nlohmann::json& event) const;
  void emit(const Session& session, const nlohmann::json& event) const {
    if (job_.rank == 0) session.events(event);
  }

  RunCheckpoints::RunState run_state() const;
  double seconds_left() const;
  // Losses are sums over samples, and carry no noise.
  bool tells_losses() const { return job_.experiment.cluster.noise == 0; }
  float learning_rate(uint64_t step) const;
  bool ended() const { return step_ == schedule_.total_steps() || selection_.exhausted(); }
  comm::Tag tag(Round round) const { return {step_ - 1, round}; }  // after the last step
  comm::Tag end_tag(Round round) const { return {step_, round}; }  // where no step follows

  const TrainJob& job_;
  const Clock& clock_;
  Outside& outside_;
  const Sharding sharding_;
  RunCheckpoints checkpoints_;
  ThreadPool pool_;
  TrainingData data_;
  shard::Network network_;
  std::optional<ReplicaSync> sync_;  // with several replicas
  const Schedule schedule_;
  ModelSelection selection_;
  RunStatistics statistics_;
  uint64_t step_ = 0;                 // steps completed
  bool stop_requested_ = false;       // this replica's request, of which the others do not know yet
  std::optional<double> epoch_loss_;  // mean of an epoch that is over, but not evaluated and reported yet
  std::optional<double> common_loss_;  // of all ranks, as they have reported it last
  bool unfitted_ = false;             // a stop has ended the fit of its classifiers
};

}  // namespace modelet::agent
