#include "node_agent/train/trainer.h"

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/experiment/memory.h"
#include "base/system/process.h"
#include "node_agent/machine/capacity.h"
#include "node_agent/replicas/rank_grid.h"
#include "node_agent/replicas/replica_sync.h"
#include "node_agent/step/exchange/rounds.h"
#include "node_agent/step/exchange/sharding.h"
#include "node_agent/step/training_step.h"
#include "node_agent/train/checkpoint_keeper.h"
#include "node_agent/train/data/training_data.h"
#include "node_agent/train/evaluation/evaluator.h"
#include "node_agent/train/evaluation/model_selection.h"
#include "node_agent/train/progress/preparing.h"
#include "node_agent/train/progress/run_statistics.h"
#include "node_agent/train/progress/schedule.h"
#include "shard/kernels/simd/instruction_set.h"
#include "shard/layers/learning_rate.h"
#include "shard/layers/network.h"

namespace modelet::agent {

using nlohmann::json;

namespace {

// Names in CheckpointKeeper::RunState::extra.
constexpr const char *kTrainSeconds = "train_seconds", *kValidation = "validation",
                     *kEpochLoss = "epoch_loss";

unsigned thread_count(const TrainJob& job) {
  if (job.threads > 0) return job.threads;
  if (job.experiment.train.threads > 0) return job.experiment.train.threads;
  return usable_cores();
}

Schedule schedule_of(const TrainJob& job, uint64_t steps_per_epoch) {
  return {job.experiment.train, steps_per_epoch,
          job.replicas() > 1 ? job.experiment.exchange.local_steps : 0};
}

ModelSelection::Options selection_of(const Experiment& experiment) {
  return {.loss = experiment.model.loss,
          .metrics = experiment.metrics,
          .metric = experiment.train.metric,
          .patience = experiment.train.patience};
}

TellPreparing tell_preparing(const EventSink& events, const Clock& clock) {
  if (!events) return [](const std::string&) { return shard::PrepareProgress(); };
  return [&](const std::string& file) { return preparing_events(file, events, clock); };
}

// The most memory that synchronising will take in addition.
uint64_t sync_buffers(const TrainJob& job, const Sharding& sharding) {
  uint64_t most = 0;
  for (const ModeletSpec& modelet : sharding.held())
    most = std::max(most, sync_buffer_bytes(modelet, job.experiment));
  return most;
}

}  // namespace

// A run from its first step to its last: what prepare() makes, and what outlives the group.
class Trainer::Training {
 public:
  Training(const TrainJob& job, const Clock& clock, Outside& outside, const EventSink& events);

  void run(comm::Group& group, const EventSink& events);

 private:
  // What lives only as long as the group.
  struct Session {
    RankGrid& grid;
    const EventSink& events;
    TrainingStep step;
    Evaluator evaluator;
    double reported;  // when the last event about progress was
  };

  void restore(const CheckpointKeeper::RunState& state);
  bool one_step(Session& session);
  bool synchronise(Session& session, bool stop);
  void end_epoch(Session& session);
  void evaluate(Session& session, json& event);
  void test(Session& session, comm::Tag tag);
  void checkpoint(Session& session, comm::Tag tag);
  [[noreturn]] void end_early(Session& session);
  void finish(Session& session);

  void report_start(Session& session);
  void report_step(Session& session);
  Evaluator::Progress report_evaluation(Session& session, const char* data);
  json progress(Session& session, double loss) const;
  void emit(const Session& session, const json& event) const {
    if (job_.rank == 0) session.events(event);
  }

  CheckpointKeeper::RunState run_state() const;
  double seconds_left() const;
  float learning_rate(uint64_t step) const;
  bool ended() const { return step_ == schedule_.total_steps() || selection_.exhausted(); }
  comm::Tag tag(Round round) const { return {step_ - 1, round}; }  // after the last step
  comm::Tag end_tag(Round round) const { return {step_, round}; }  // where no step follows

  const TrainJob& job_;
  const Clock& clock_;
  Outside& outside_;
  const Sharding sharding_;
  CheckpointKeeper checkpoints_;
  ThreadPool pool_;
  TrainingData data_;
  shard::Network network_;
  std::optional<ReplicaSync> sync_;  // with several replicas
  const Schedule schedule_;
  ModelSelection selection_;
  RunStatistics statistics_;
  uint64_t step_ = 0;                 // steps completed
  bool stop_wished_ = false;          // of this replica, not heard by the others yet
  std::optional<double> epoch_loss_;  // mean of an epoch that is over but not evaluated and reported yet
};

Trainer::Training::Training(const TrainJob& job, const Clock& clock, Outside& outside,
                            const EventSink& events)
    : job_(job),
      clock_(clock),
      outside_(outside),
      sharding_(sharding_of(job)),
      checkpoints_(job, sharding_),
      pool_(thread_count(job)),
      data_(job, sharding_, pool_, tell_preparing(events, clock)),
      network_(job.experiment, job.shape, sharding_.held(), true, pool_),
      schedule_(schedule_of(job, data_.feed().steps_per_epoch())),
      selection_(selection_of(job.experiment), data_),
      statistics_(clock) {
  if (const auto state = checkpoints_.restore(network_)) restore(*state);
  if (job.replicas() > 1) sync_.emplace(network_);
  network_.set_label_counts(data_.label_counts());
  outside_.memory_bytes = network_.memory_bytes() + data_.memory_bytes() +
                          (sync_ ? sync_->memory_bytes() + sync_buffers(job, sharding_) : 0);
  if (job.rank == 0) checkpoints_.take_folder(selection_.best().step());
}

void Trainer::Training::restore(const CheckpointKeeper::RunState& state) {
  outside_.step = step_ = state.step;
  const std::string folder = checkpoints_.folder().string();
  if (step_ > schedule_.total_steps())
    throw UsageError(folder + ": has done " + std::to_string(step_) +
                     " steps, and the experiment ends after " + std::to_string(schedule_.total_steps()) +
                     ": raise train.epochs to go on");
  statistics_.resume(state.extra.value(kTrainSeconds, 0.0));
  if (data_.validates() && state.extra.contains(kValidation)) selection_.restore(state.extra.at(kValidation));
  if (!state.extra.contains(kEpochLoss)) return;
  const json& loss = state.extra.at(kEpochLoss);
  if (!loss.is_number() || !schedule_.ends_epoch(step_) || selection_.best().step() >= step_)
    throw FormatError(folder + ": its record of an epoch that was not evaluated makes no sense");
  epoch_loss_ = loss.get<double>();
}

void Trainer::Training::run(comm::Group& group, const EventSink& events) {
  RankGrid grid(group, static_cast<uint32_t>(job_.replicas()));
  Session session{.grid = grid,
                  .events = events,
                  .step = {network_, sharding_, grid.replica()},
                  .evaluator = {network_, sharding_, grid.replica()},
                  .reported = clock_.now()};
  report_start(session);
  session.step.while_waiting([this] { data_.feed().finish_next(); });
  if (epoch_loss_) end_epoch(session);  // where the run was left
  if (!ended()) session.step.measure_exchange(step_);
  while (!ended()) {
    const bool stop = one_step(session);
    report_step(session);
    if (schedule_.ends_epoch(step_)) epoch_loss_ = grid.mean(step_, statistics_.since_epoch().mean());
    // Comes first, because an evaluation may take long.
    if (stop || schedule_.checkpoint_after(step_)) checkpoint(session, tag(kCheckpointRound));
    if (stop && step_ != schedule_.total_steps()) end_early(session);
    if (schedule_.ends_epoch(step_)) end_epoch(session);
  }
  finish(session);
}

// Returns whether all stop now because some rank wishes to.
bool Trainer::Training::one_step(Session& session) {
  shard::BatchFeed& feed = data_.feed();
  statistics_.begin_step(session.grid.totals());
  const float rate = learning_rate(step_);
  const shard::Batch& batch = feed.at(step_, schedule_.total_steps());
  const shard::Batch* const next = schedule_.exchanges_after(step_ + 1) ? nullptr : &feed.next();
  const StepResult result = session.step.run(batch, step_, rate, outside_.stop_requested, next);
  outside_.step = ++step_;
  const bool stop = sync_ ? synchronise(session, result.stop) : result.stop;
  statistics_.end_step(result.loss, feed.samples(step_ - 1), session.grid.totals());
  return stop;
}

// A replica's wish to stop is heard when the replicas synchronise.
bool Trainer::Training::synchronise(Session& session, bool stop) {
  stop_wished_ |= stop;
  switch (schedule_.sync_after(step_)) {
    case Schedule::Sync::kNone:
      return false;
    case Schedule::Sync::kSettle:
      return sync_->settle(session.grid, step_, stop_wished_);
    case Schedule::Sync::kAverage:
      break;
  }
  const bool all_stop = sync_->average(session.grid, step_, stop_wished_);
  if (all_stop) sync_->settle(session.grid, step_, true);  // for the checkpoint
  return all_stop;
}

// The checkpoint of this step, if there is one, continues from here until it says that this is done: a run
// that is killed meanwhile does it again.
void Trainer::Training::end_epoch(Session& session) {
  json event = {{"event", "epoch"},
                {"epoch", schedule_.epoch(step_)},
                {"step", step_},
                {"loss", *epoch_loss_},
                {"train_seconds", statistics_.train_seconds()},
                {"samples_per_second", statistics_.samples_per_second()}};
  if (schedule_.evaluates_after(step_)) evaluate(session, event);
  emit(session, event);
  epoch_loss_.reset();
  statistics_.since_epoch().reset();
  if (checkpoints_.written_step() != step_) {
    if (ended() || selection_.best().step() == step_) checkpoint(session, tag(kBestRound));
  } else if (job_.rank == 0) {
    checkpoints_.amend(run_state());
  }
}

void Trainer::Training::evaluate(Session& session, json& event) {
  if (!data_.validates()) {
    test(session, tag(kEvaluationRound));
    add_figures(event, selection_.test_figures());
    return;
  }
  const double began = clock_.now();
  event[kValidation] =
      selection_.validate(session.evaluator, session.grid, step_, report_evaluation(session, "validation"));
  statistics_.add_evaluation(data_.validation_rows().size(), clock_.now() - began);
}

void Trainer::Training::test(Session& session, comm::Tag tag) {
  const double began = clock_.now();
  if (selection_.test(session.evaluator, step_, tag, report_evaluation(session, "test")))
    statistics_.add_evaluation(data_.test().rows(), clock_.now() - began);
}

void Trainer::Training::checkpoint(Session& session, comm::Tag tag) {
  const double began = clock_.now();
  checkpoints_.write(run_state(), network_, data_.train(), session.grid, tag);
  statistics_.add_checkpoint(clock_.now() - began);
  emit(session, {{"event", "checkpoint"}, {"step", step_}, {"path", checkpoints_.folder().string()}});
}

CheckpointKeeper::RunState Trainer::Training::run_state() const {
  json extra = {{kTrainSeconds, statistics_.train_seconds()}};
  if (data_.validates()) extra[kValidation] = selection_.best().state();
  if (epoch_loss_) extra[kEpochLoss] = *epoch_loss_;
  return {.step = step_,
          .best_step = data_.validates() ? selection_.best().step() : step_,
          .extra = std::move(extra)};
}

void Trainer::Training::end_early(Session& session) {
  const std::string folder = checkpoints_.folder().string();
  emit(session, {{"event", "interrupted"}, {"step", step_}, {"checkpoint", folder}});
  throw Interrupted("stopped after step " + std::to_string(step_) + "; continue with --resume " + folder);
}

// The run ends with the weights that validated best.
void Trainer::Training::finish(Session& session) {
  if (const uint64_t best = selection_.best().step(); best > 0) checkpoints_.return_to(best, step_, network_);
  test(session, end_tag(kEvaluationRound));
  const std::vector<size_t> counts(static_cast<size_t>(job_.size), 2);
  const std::vector<uint64_t> mine = {static_cast<uint64_t>(statistics_.bytes_per_step()),
                                      peak_memory_bytes()};
  uint64_t bytes = 0, rss = 0;
  for (const auto& numbers : session.grid.all_gather_numbers(end_tag(kFinishRound), mine, counts)) {
    bytes += numbers[0];
    rss = std::max(rss, numbers[1]);
  }
  json event = {{"event", "finished"},
                {"train_seconds", statistics_.train_seconds()},
                {"samples_per_second", statistics_.samples_per_second()},
                {"steps", step_},
                {"bytes_sent_per_node_per_step", bytes / counts.size()},
                {"peak_rss_bytes", rss},
                {"checkpoint", checkpoints_.folder().string()}};
  add_figures(event, selection_.test_figures());
  if (data_.validates()) {
    event[kValidation] = selection_.best().figures();
    event["best_step"] = selection_.best().step();
  }
  emit(session, event);
}

void Trainer::Training::report_start(Session& session) {
  uint64_t parameters = 0;
  for (const ModeletSpec& spec : sharding_.partition()) parameters += spec.parameters();
  emit(session, {{"event", "started"},
                 {"run", job_.run},
                 {"epochs", job_.experiment.train.epochs},
                 {"steps", schedule_.total_steps()},
                 {"step", step_},
                 {"parameters", parameters},
                 {"nodes", job_.size},
                 {"replicas", job_.replicas()},
                 {"threads", pool_.threads()},
                 {"features", job_.shape.features},
                 {"labels", job_.shape.labels},
                 {"train_rows", job_.shape.train_rows},
                 {"validation_rows", data_.validation_rows().size()},
                 {"instruction_set", shard::kernels::instruction_set()}});
}

// All ranks together every few steps; in between rank 0 alone, if the steps are slow: the others need not
// know how much time has passed there.
void Trainer::Training::report_step(Session& session) {
  if (session.step.codecs().take_changed()) {
    json event = session.step.codecs().describe();
    event["event"] = "exchange";
    event["step"] = step_;
    emit(session, event);
  }
  if (schedule_.progress_after(step_)) {
    const RunStatistics::Common common = statistics_.gather(session.grid, step_);
    json event = progress(session, common.loss);
    event["nodes"] = common.nodes;
    emit(session, event);
  } else if (job_.rank == 0 && clock_.now() - session.reported >= kMostSilentSeconds) {
    emit(session, progress(session, statistics_.since_gathered().mean()));
  } else {
    return;
  }
  session.reported = clock_.now();
}

// An evaluation may take long: rank 0 tells from time to time how far it is.
Evaluator::Progress Trainer::Training::report_evaluation(Session& session, const char* data) {
  if (job_.rank != 0) return {};
  return [this, &session, data, began = clock_.now()](size_t rows, size_t total_rows) {
    const double now = clock_.now();
    if (now - session.reported < kMostSilentSeconds || rows == total_rows) return;
    session.reported = now;
    emit(session, {{"event", "evaluating"},
                   {"step", step_},
                   {"data", data},
                   {"rows", rows},
                   {"total_rows", total_rows},
                   {"eta_seconds",
                    (now - began) / static_cast<double>(rows) * static_cast<double>(total_rows - rows)}});
  };
}

json Trainer::Training::progress(Session& session, double loss) const {
  json event = {{"event", "progress"},
                {"step", step_},
                {"steps", schedule_.total_steps()},
                {"epoch", schedule_.epoch(step_)},
                {"loss", loss},
                {"train_seconds", statistics_.train_seconds()},
                {"samples_per_second", statistics_.samples_per_second()},
                {"eta_seconds", seconds_left()},
                {"bytes_sent_per_node_per_step", statistics_.bytes_per_step()},
                {"wait_fraction", statistics_.wait_fraction()},
                {"learning_rate", learning_rate(step_ - 1)}};
  if (job_.ranks() > 1) event["micro_batches"] = session.step.micro_batches();
  return event;
}

double Trainer::Training::seconds_left() const {
  const Schedule::Left left = schedule_.left_after(step_);
  const uint64_t test_rows = data_.test().rows();
  const uint64_t evaluated = data_.validates() ? left.evaluations * data_.validation_rows().size() + test_rows
                                               : left.evaluations * test_rows;
  return statistics_.seconds_left(left.steps, evaluated, left.checkpoints);
}

float Trainer::Training::learning_rate(uint64_t step) const {
  return shard::learning_rate(job_.experiment.train, step, schedule_.steps_per_epoch(),
                              schedule_.total_steps());
}

Trainer::Trainer(TrainJob job, std::unique_ptr<const Clock> clock)
    : job_(std::move(job)), clock_(std::move(clock)) {}

Trainer::~Trainer() = default;

void Trainer::prepare(const EventSink& events) {
  try {
    training_ = std::make_unique<Training>(job_, *clock_, outside_, events);
  } catch (const std::bad_alloc&) {
    uint64_t bytes = 0;
    for (const ModeletSpec& modelet : sharding_of(job_).held())
      bytes += modelet_bytes(modelet, job_.experiment);
    throw Error("this node's memory is too small: its part of the model takes " +
                std::to_string(bytes >> 20) +
                " MiB, and the data comes on top; train on more nodes, or choose model.precision = \"bf16\", "
                "a smaller "
                "model.hidden or an optimizer.kind that keeps less ('modelet plan' tells what a run needs)");
  }
}

void Trainer::run(comm::Group& group, const EventSink& events) {
  MODELET_CHECK(training_ != nullptr, "prepare() first");
  training_->run(group, events);
}

}  // namespace modelet::agent
