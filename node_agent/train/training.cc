#include "node_agent/train/training.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/experiment/memory.h"
#include "base/system/log.h"
#include "base/system/process.h"
#include "node_agent/machine/capacity.h"
#include "node_agent/train/evaluation/classifiers.h"
#include "node_agent/train/job/same_run.h"
#include "node_agent/train/progress/preparing.h"
#include "node_agent/train/progress/run_schedule.h"
#include "shard/kernels/simd/instruction_set.h"
#include "shard/layers/learning_rate.h"
#include "shard/layers/scoring/classifiers.h"

namespace modelet::agent {

using nlohmann::json;

namespace {

// Names in RunCheckpoints::RunState::extra.
constexpr const char *kTrainSeconds = "train_seconds", *kValidation = "validation",
                     *kEpochLoss = "epoch_loss", *kUnfitted = "unfitted";

// The numbers of a rank in RunCheckpoints::RunState::of_ranks. (Earlier releases added more.)
enum OfRank : size_t { kEpochSum, kEpochSteps, kGatheredSum, kGatheredSteps, kSums };
constexpr double kMostSteps = 1e15;

const std::string kTestData = "test";

ModelSelection::Options selection_of(const Experiment& experiment, uint64_t labels) {
  return {.loss = experiment.model.loss,
          .metrics = experiment.metrics,
          .metric = metric_of(experiment.train, labels),
          .patience = experiment.train.patience};
}

// `check` may throw, which ends the preparation.
OnPreparing report_preparing(const EventSink& events, const Clock& clock, std::function<void()> check) {
  return [&events, &clock, check = std::move(check)](const std::string& file) -> shard::PrepareProgress {
    const auto report = events ? preparing_events(file, events, clock) : shard::PrepareProgress();
    return [report, check](uint64_t rows, uint64_t bytes, double done) {
      check();
      if (report) report(rows, bytes, done);
    };
  };
}

// The most memory that synchronising will need in addition.
uint64_t sync_buffers(const TrainJob& job, const Sharding& sharding) {
  uint64_t most = 0;
  for (const ModeletSpec& modelet : sharding.held())
    most = std::max(most, sync_buffer_bytes(modelet, job.experiment));
  return most;
}

}  // namespace

Trainer::Training::Training(const TrainJob& job, const Clock& clock, Outside& outside,
                            const EventSink& events)
    : job_(job),
      clock_(clock),
      outside_(outside),
      sharding_(sharding_of(job)),
      checkpoints_(job, sharding_),
      pool_(thread_count(job), job.throttle),
      data_(job, sharding_, pool_, report_preparing(events, clock, [this] { throw_if_stopped(); })),
      network_(job.experiment, job.shape, sharding_.held(), true, pool_, data_.features(), data_.spread()),
      schedule_(schedule_of(job, data_.steps_per_epoch(), checkpoints_.resumed_step())),
      selection_(selection_of(job.experiment, job.shape.labels), data_),
      statistics_(clock) {
  if (job.experiment.cluster.noise > 0 && job.ranks() > 1)
    throw UsageError("cluster.noise: the change of an owner is shortened as a whole, so each owner must be one node; the run has " +
                     std::to_string(job.ranks()) + " nodes for each");
  MODELET_CHECK(!job.snapshots.enabled || job.private_folder,
                "only ranks with folders of their own make snapshots");
  throw_if_stopped();
  if (const auto state = checkpoints_.restore(network_))
    restore(*state);
  else
    network_.build_pairs(data_.train(), data_.training_rows());
  throw_if_stopped();
  if (job.replicas() > 1) sync_.emplace(network_);
  if (job.other_samples)
    network_.add_samples(data_.train(), data_.training_rows(), checkpoints_.earlier_rows());
  else
    network_.set_label_counts(data_.label_counts());
  outside_.memory_bytes = network_.memory_bytes() + data_.memory_bytes() +
                          (sync_ ? sync_->memory_bytes() + sync_buffers(job, sharding_) : 0);
  checkpoints_.take_folder(selection_.best().step());
}

void Trainer::Training::restore(const RunCheckpoints::RunState& state) {
  outside_.step = step_ = job_.other_samples ? schedule_.first_step() : state.step;
  const std::string folder = checkpoints_.folder().string();
  if (step_ > schedule_.total_steps())
    throw UsageError(folder + ": has done " + std::to_string(step_) +
                     " steps, and the experiment ends after " + std::to_string(schedule_.total_steps()) +
                     ": raise train.epochs to go on");
  if (job_.other_samples) return;
  if (const auto seconds = state.extra.find(kTrainSeconds);
      seconds != state.extra.end() && seconds->is_number())
    statistics_.resume(seconds->get<double>());
  restore_numbers(state.of_ranks);
  if (data_.validates() && state.extra.contains(kValidation)) selection_.restore(state.extra.at(kValidation));
  if (!state.extra.contains(kEpochLoss)) return;
  const json& loss = state.extra.at(kEpochLoss);
  if (!loss.is_number() || !schedule_.ends_epoch(step_) || selection_.best().step() >= step_)
    throw FormatError(folder + ": its record of an epoch that was not evaluated makes no sense");
  epoch_loss_ = loss.get<double>();
  const auto unfitted = state.extra.find(kUnfitted);
  unfitted_ = unfitted != state.extra.end() && *unfitted == true;
}

void Trainer::Training::throw_if_stopped() const {
  if (outside_.stop_requested) throw Interrupted("stopped before the first step");
}

// After the loss of a node the ranks may have changed. Then each rank gets the mean of what all ranks had.
void Trainer::Training::restore_numbers(const std::vector<std::vector<double>>& of_ranks) {
  if (of_ranks.empty()) return;
  const bool same_ranks = of_ranks.size() == static_cast<size_t>(job_.size);
  std::vector<double> sums(kSums);
  for (const std::vector<double>& row : of_ranks) {
    const auto is_count = [](double n) { return n >= 0 && n <= kMostSteps; };
    if (row.size() < kSums || !is_count(row[kEpochSteps]) || !is_count(row[kGatheredSteps]))
      throw FormatError(checkpoints_.folder().string() + ": its sums of losses make no sense");
    for (size_t i = 0; i < kSums; ++i) sums[i] += row[i];
  }
  for (double& sum : sums) sum /= static_cast<double>(of_ranks.size());
  if (same_ranks) {
    const std::vector<double>& own = of_ranks[static_cast<size_t>(job_.rank)];
    sums.assign(own.begin(), own.begin() + kSums);
  }
  statistics_.resume(MeanLoss(sums[kGatheredSum], static_cast<uint64_t>(sums[kGatheredSteps])),
                     MeanLoss(sums[kEpochSum], static_cast<uint64_t>(sums[kEpochSteps])));
}

// With several replicas, or if the experiment says so, snapshots are made every so many steps, and there is
// no budget.
std::optional<SnapshotBudget> Trainer::Training::snapshot_budget() const {
  if (!job_.snapshots.enabled || job_.rank != 0 || snapshot_every(job_) > 0) return std::nullopt;
  return SnapshotBudget(job_.snapshots, network_.memory_bytes(), clock_.now());
}

void Trainer::Training::run(comm::Group& group, const EventSink& events, const SnapshotSink& snapshots) {
  RankGrid grid(group, static_cast<uint32_t>(job_.replicas()));
  StepTrace trace(clock_);
  Session session{.grid = grid,
                  .events = events,
                  .snapshots = snapshots,
                  .trace = trace,
                  .step = {network_, sharding_, grid.replica(), std::make_unique<SteadyClock>(), &trace},
                  .evaluator = {network_, sharding_, grid.replica()},
                  .reported = clock_.now(),
                  .budget = snapshot_budget()};
  // Replicas evaluate each for itself, so they cannot agree to stop there.
  if (job_.replicas() == 1) session.evaluator.stop_if([this] { return outside_.stop_requested.load(); });
  if (is_private(job_.experiment)) weigh_owners(grid);
  draw_participants(grid);
  report_start(session);
  session.step.while_waiting([this] { data_.feed().finish_next(); });
  try {
    go_through(session);
  } catch (const Evaluator::Stopped&) {
    end_in_evaluation(session);
  }
}

// An owner that claims more samples than the rule allows weighs no more for it. Those that are not known are not told how
// many samples there are.
void Trainer::Training::weigh_owners(RankGrid& grid) const {
  const uint64_t most = job_.experiment.cluster.most_samples;
  const uint64_t samples = std::max<uint64_t>(1, data_.training_rows().size());
  if (sends_sums(job_.experiment)) grid.agree_on_masks(step_, job_.identity);
  grid.share_weights(step_, most == 0 ? samples : std::min(samples, most), most);
}

// Who does the steps that follow, up to the next synchronisation.
void Trainer::Training::draw_participants(RankGrid& grid) const {
  const uint32_t owners = is_private(job_.experiment) ? job_.experiment.cluster.owners_per_round : 0;
  grid.draw_participants(job_.experiment.train.seed, step_, owners);
}

void Trainer::Training::go_through(Session& session) {
  if (epoch_loss_) go_on_with_epoch(session);
  while (!ended()) {
    const Due due = one_step(session);
    session.stops = due.stop;
    report_step(session);
    if ((!session.traces_next || ended()) && !session.trace.spans().empty()) report_trace(session);
    if (schedule_.ends_epoch(step_)) {
      epoch_loss_ = tells_losses() ? statistics_.since_epoch().over_replicas(session.grid, step_) : 0;
      statistics_.since_epoch().reset();
    }
    if (schedule_.evaluates_after(step_)) fit_classifiers(session);
    save_after_step(session, due);
    if (due.stop && step_ != schedule_.total_steps()) end_early(session);
    if (schedule_.ends_epoch(step_)) end_epoch(session, due);
  }
  finish(session);
}

Trainer::Training::Due Trainer::Training::one_step(Session& session) {
  statistics_.begin_step(session.grid.totals());
  const comm::Meters& meters = session.grid.replica().meters();
  const bool takes_part = session.grid.takes_part();
  const size_t participants = static_cast<size_t>(std::ranges::count(session.grid.participants(), 1));
  const StepResult result = takes_part ? learn(session) : StepResult{.stop = outside_.stop_requested};
  outside_.step = ++step_;
  if (takes_part) ++outside_.steps_learned;
  if (sync_) sync_->pull_back(session.grid.replica_index(), step_, learning_rate(step_ - 1));
  const bool stop = sync_ ? synchronise(session, result.stop) : result.stop;
  if (sync_) session.trace.end_phase(TracePhase::kSynchronise, meters);
  session.trace.end_step();
  session.traces_next = result.trace;
  const size_t samples = data_.feed().samples(step_ - 1) * participants / session.grid.replicas();
  statistics_.end_step(takes_part ? std::optional<double>(result.loss) : std::nullopt, samples, session.grid.totals());
  return {stop, result.snapshot || schedule_.snapshot_after(step_)};
}

// A step on this replica's samples.
StepResult Trainer::Training::learn(Session& session) {
  shard::BatchFeed& feed = data_.feed();
  const comm::Meters& meters = session.grid.replica().meters();
  plan_trace(session);
  if (session.traces_next) session.trace.begin_step(step_ + 1, meters);
  const shard::Batch& batch = feed.at(step_, schedule_.total_steps());
  // A step that has begun ahead would not see what the rule of the replicas makes of the weights.
  const bool ahead = !schedule_.exchanges_after(step_ + 1) && job_.experiment.cluster.rule != MeanRule::kProx;
  const shard::Batch* const next = ahead ? &feed.next() : nullptr;
  session.trace.end_phase(TracePhase::kBatch, meters);
  const double began = clock_.now();
  if (session.budget) session.step.request_snapshot(session.budget->due(began));
  const StepResult result = session.step.run(batch, step_, learning_rate(step_), outside_.stop_requested, next);
  if (session.budget) session.budget->stepped(clock_.now() - began);
  return result;
}

// Every step that asks for a trace of the next one counts, also one that has begun ahead.
void Trainer::Training::plan_trace(Session& session) {
  if (session.grid.replica().rank() != 0) return;
  if (const uint32_t asked = outside_.trace_steps.exchange(0); asked > 0)
    session.to_trace = std::min(asked, StepTrace::kMostSteps);
  session.step.request_trace(session.to_trace > 0);
  if (session.to_trace > 0) --session.to_trace;
}

// Every rank reports its own, in parts that fit into a message (docs/events.md).
void Trainer::Training::report_trace(Session& session) const {
  constexpr size_t kSpansOfPart = 500;
  constexpr double kMicroseconds = 1e6;
  const auto micro = [](double seconds) { return std::llround(seconds * kMicroseconds); };
  const std::vector<TraceSpan> spans = session.trace.take();
  const Seconds calendar = std::chrono::system_clock::now().time_since_epoch();
  const double zero = spans.front().began;  // in the calendar: `began`
  const size_t parts = (spans.size() + kSpansOfPart - 1) / kSpansOfPart;
  json phases = json::array();
  for (size_t phase = 0; phase < kTracePhases; ++phase)
    phases.push_back(spelling(static_cast<TracePhase>(phase)));
  for (size_t part = 0; part < parts; ++part) {
    json list = json::array();
    for (size_t i = part * kSpansOfPart; i < std::min((part + 1) * kSpansOfPart, spans.size()); ++i)
      list.push_back({spans[i].step, static_cast<int>(spans[i].phase), micro(spans[i].began - zero),
                      micro(spans[i].seconds), micro(spans[i].wait), micro(spans[i].codec)});
    session.events({{"event", "trace"},
                    {"node", session.grid.node_name(job_.rank)},
                    {"rank", static_cast<uint64_t>(session.grid.replica().rank())},
                    {"ranks", static_cast<uint64_t>(job_.ranks())},
                    {"part", part},
                    {"parts", parts},
                    {"began", calendar.count() - (clock_.now() - zero)},
                    {"phases", phases},
                    {"spans", std::move(list)}});
  }
}

// The other replicas learn of a replica's wish to stop when they synchronise.
bool Trainer::Training::synchronise(Session& session, bool stop) {
  stop_requested_ |= stop;
  const Schedule::Sync kind = schedule_.sync_after(step_);
  if (kind == Schedule::Sync::kNone) return false;
  if (session.grid.takes_part() && job_.before_round) job_.before_round();
  bool all_stop = stop_requested_;
  if (kind == Schedule::Sync::kAverage) all_stop = sync_->average(session.grid, step_, all_stop);
  if (kind == Schedule::Sync::kExact || all_stop)  // for the checkpoint
    all_stop = sync_->synchronise_exactly(session.grid, step_, all_stop);
  draw_participants(session.grid);
  return all_stop;
}

// Weights that are evaluated, and so the best ones and the last, have classifiers of their own. A checkpoint
// between evaluations has those of the evaluation before it, or none yet.
void Trainer::Training::fit_classifiers(Session& session) {
  if (!has_classifiers(job_.experiment.model)) return;
  const double began = clock_.now();
  unfitted_ = true;
  agent::fit_classifiers(network_, session.evaluator, data_.train(), data_.training_rows(),
                         tag(kClassifierRound), report_evaluation(session, "training"));
  unfitted_ = false;
  statistics_.add_classifiers(clock_.now() - began);
}

// In a shared folder, the checkpoint at the end of an epoch comes before the evaluation, which may take
// long. In a private folder it comes after it: other nodes then have the checkpoint, so it cannot be
// amended, and the last snapshot before it is not old.
void Trainer::Training::save_after_step(Session& session, Due due) {
  const bool early = due.stop && step_ != schedule_.total_steps();
  const bool later = job_.private_folder && schedule_.ends_epoch(step_) && !early;
  if (later) return;
  if (early || schedule_.checkpoint_after(step_) || (due.stop && !job_.private_folder))
    checkpoint(session, tag(kCheckpointRound), early ? Purpose::kResult : Purpose::kCheckpoint);
  else if (due.snapshot)
    snapshot(session);
}

void Trainer::Training::snapshot(Session& session) {
  const SnapshotOptions& options = job_.snapshots;
  const uint64_t last = checkpoints_.written_step();
  if (job_.rank == 0 && options.every_steps > 0 && last > 0 && options.is_safe && !options.is_safe(last) &&
      !std::exchange(session.warned_late, true))
    log_warning(
        "the snapshot of step {} is still on its way to other nodes after step {}: a lost node may cost more than "
        "cluster.snapshot_every = {} steps; choose more",
        last, step_, job_.experiment.cluster.snapshot_every);
  checkpoint(session, tag(kCheckpointRound), Purpose::kSnapshot);
}

// A run that was left after the last step of an epoch goes on here.
void Trainer::Training::go_on_with_epoch(Session& session) {
  if (unfitted_) {
    fit_classifiers(session);
    if (!job_.private_folder) checkpoint(session, tag(kCheckpointRound), Purpose::kCheckpoint);
  }
  end_epoch(session, {});
}

// If there is a checkpoint of this step, a run that goes on from it begins here, until the checkpoint says
// that this is done. So a run that is killed meanwhile does it again.
void Trainer::Training::end_epoch(Session& session, Due due) {
  json event = {{"event", "epoch"},
                {"epoch", schedule_.epoch(step_)},
                {"step", step_},
                {"train_seconds", statistics_.train_seconds()},
                {"samples_per_second", statistics_.samples_per_second()}};
  if (tells_losses()) event["loss"] = *epoch_loss_;
  if (schedule_.evaluates_after(step_)) evaluate(session, event);
  emit(session, event);
  epoch_loss_.reset();
  save_after_epoch(session, due);
}

void Trainer::Training::save_after_epoch(Session& session, Due due) {
  const bool result = ended() || selection_.best().step() == step_;
  if (job_.private_folder) {
    if (result || schedule_.checkpoint_after(step_) || due.snapshot)
      checkpoint(session, tag(kBestRound),
                 result                              ? Purpose::kResult
                 : schedule_.checkpoint_after(step_) ? Purpose::kCheckpoint
                                                     : Purpose::kSnapshot);
  } else if (checkpoints_.written_step() != step_) {
    if (result) checkpoint(session, tag(kBestRound), Purpose::kResult);
  } else {
    checkpoints_.amend(run_state(), result ? Purpose::kResult : Purpose::kCheckpoint, session.grid,
                       tag(kBestRound), [&](comm::Tag of_wait) { return wait_for_room(session, of_wait); });
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
  if (selection_.test(session.evaluator, step_, tag, report_evaluation(session, kTestData)))
    statistics_.add_evaluation(data_.test().rows(), clock_.now() - began);
}

void Trainer::Training::checkpoint(Session& session, comm::Tag tag, Purpose purpose) {
  double began = clock_.now();  // of the last attempt: the budget must not learn how long the disk was full
  const auto wait = [&](comm::Tag of_wait) {
    const bool again = wait_for_room(session, of_wait);
    began = clock_.now();
    return again;
  };
  const bool written = checkpoints_.write(run_state(), purpose, network_, data_.train(), session.grid, tag,
                                          session.snapshots, wait);
  const double now = clock_.now();
  if (session.budget)
    session.budget->made(now, written ? step_ : 0, now - began, checkpoints_.largest_part());
  if (purpose == Purpose::kSnapshot) return;
  statistics_.add_checkpoint(now - began);
  if (written)
    emit(session, {{"event", "checkpoint"}, {"step", step_}, {"path", checkpoints_.folder().string()}});
}

// A rank that is asked to stop waits for the others in the exchange below. A stop ends the waiting, and a run
// that was asked to stop does not wait: whoever asks wants it to end, and the checkpoint before this one is
// whole.
bool Trainer::Training::wait_for_room(Session& session, comm::Tag tag) const {
  constexpr double kLook = 0.05;  // seconds between two looks at whether the wait is over
  const auto stops = [&] { return session.stops || outside_.stop_requested; };
  for (const double until = clock_.now() + job_.snapshots.retry_seconds; clock_.now() < until && !stops();
       clock_.sleep(kLook))
    session.grid.throw_if_interrupted();
  const uint64_t stopped = stops() ? 1 : 0;
  const std::vector<size_t> counts(static_cast<size_t>(job_.size), 1);
  return std::ranges::none_of(session.grid.all_gather_numbers(tag, std::span(&stopped, 1), counts),
                              [](const auto& numbers) { return numbers[0] > 0; });
}

RunCheckpoints::RunState Trainer::Training::run_state() const {
  json extra = {{kTrainSeconds, statistics_.train_seconds()},
                {kTestFingerprint, fingerprint_text(data_.test())}};
  if (data_.validates()) extra[kValidation] = selection_.best().state();
  if (epoch_loss_) extra[kEpochLoss] = *epoch_loss_;
  if (unfitted_) extra[kUnfitted] = true;
  std::vector<double> numbers(kSums);
  if (!is_private(job_.experiment)) {  // the losses of an owner's samples are its own
    const MeanLoss &gathered = statistics_.since_gathered(), &epoch = statistics_.since_epoch();
    numbers[kEpochSum] = epoch.sum();
    numbers[kEpochSteps] = static_cast<double>(epoch.steps());
    numbers[kGatheredSum] = gathered.sum();
    numbers[kGatheredSteps] = static_cast<double>(gathered.steps());
  }
  return {.step = step_,
          .best_step = data_.validates() ? selection_.best().step() : step_,
          .extra = std::move(extra),
          .of_ranks = {std::move(numbers)}};
}

// An evaluation or a fit of classifiers was left. A run that goes on from this step does it from the beginning.
// Classifiers of which only some are fitted are not kept: whoever asks the checkpoint is answered without
// any.
void Trainer::Training::end_in_evaluation(Session& session) {
  if (unfitted_) shard::clear_classifiers(network_.scoring());
  if (!session.last && checkpoints_.written_step() != step_)
    checkpoint(session, tag(kBestRound), Purpose::kResult);
  end_early(session);
}

void Trainer::Training::end_early(Session& session) {
  const std::string folder = session.last.value_or(checkpoints_.folder()).string();
  emit(session, {{"event", "interrupted"}, {"step", step_}, {"checkpoint", folder}});
  session.grid.leave(end_tag(kLeaveRound));
  throw Interrupted("stopped after step " + std::to_string(step_) +
                    (job_.private_folder ? "" : "; continue with --resume " + folder));
}

// The run ends with the weights that validated best.
void Trainer::Training::finish(Session& session) {
  session.last = checkpoints_.folder();
  if (const uint64_t best = selection_.best().step(); best > 0)
    checkpoints_.return_to(best, step_, network_, session.grid, end_tag(kReturnRound));
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
  add_refused(session, event);
  emit(session, event);
  if (sync_ && sync_->own_clipped() > 0)
    log_for_owner("run {}: in {} rounds this owner's change was longer than cluster.clip and was shortened", job_.run,
                  sync_->own_clipped());
  if (sync_ && sync_->own_shortened() > 0)
    log_for_owner("run {}: {} rows changed by more than cluster.largest_change and were shortened before they were sent",
                  job_.run, sync_->own_shortened());
  session.grid.leave(end_tag(kLeaveRound));
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
                 {"validation_rows", is_private(job_.experiment) ? 0 : data_.validation_rows().size()},
                 {"instruction_set", shard::kernels::instruction_set()}});
}

// Every few steps all ranks report together. In between, if the steps are slow, rank 0 reports alone: the
// other ranks need not know how much time has passed on rank 0.
void Trainer::Training::report_step(Session& session) {
  if (schedule_.progress_after(step_)) {
    const RunStatistics::Common common = statistics_.gather(session.grid, step_, tells_losses());
    common_loss_ = common.loss;
    json event = progress(session, common.loss);
    event["nodes"] = common.nodes;
    add_refused(session, event);
    emit(session, event);
  } else if (job_.rank == 0 && clock_.now() - session.reported >= kMostSilentSeconds) {
    const bool is_own = is_private(job_.experiment);  // the loss of an owner's samples is not told
    if (is_own && !common_loss_) return;
    emit(session, progress(session, is_own ? common_loss_ : statistics_.since_gathered().mean()));
  } else {
    return;
  }
  session.reported = clock_.now();
}

// An evaluation may take long, so rank 0 reports its progress from time to time.
Evaluator::Progress Trainer::Training::report_evaluation(Session& session, const std::string& data) {
  const bool is_own = is_private(job_.experiment) && data != kTestData;  // how many there are is the owner's affair
  if (job_.rank != 0 || is_own) return {};
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

json Trainer::Training::progress(Session& session, std::optional<double> loss) const {
  json event = {{"event", "progress"},
                {"step", step_},
                {"steps", schedule_.total_steps()},
                {"epoch", schedule_.epoch(step_)},
                {"train_seconds", statistics_.train_seconds()},
                {"samples_per_second", statistics_.samples_per_second()},
                {"eta_seconds", seconds_left()},
                {"bytes_sent_per_node_per_step", statistics_.bytes_per_step()},
                {"wait_fraction", statistics_.wait_fraction()},
                {"learning_rate", learning_rate(step_ - 1)}};
  if (loss) event["loss"] = *loss;
  if (job_.ranks() > 1) event["micro_batches"] = session.step.micro_batches();
  return event;
}

// What replicas sent and what is not in the means. Each rank says in its log that there is such a thing.
void Trainer::Training::add_refused(Session& session, json& event) const {
  if (!sync_) return;
  json refused = json::array();
  for (size_t replica = 0; replica <= session.grid.replicas(); ++replica) {
    const auto [dropped, shortened] = sync_->refusals(replica);
    if (dropped + shortened == 0) continue;
    refused.push_back({{"dropped", dropped}, {"shortened", shortened}});
    if (replica < session.grid.replicas())
      refused.back()["node"] = session.grid.peers().node_name(static_cast<int>(replica));
  }
  if (refused.empty()) return;
  if (refused.size() > session.warned_of)
    log_warning("up to step {} rows that replicas sent were refused: {}", step_, refused.dump());
  session.warned_of = refused.size();
  event["refused"] = std::move(refused);
}

double Trainer::Training::seconds_left() const {
  const Schedule::Left left = schedule_.left_after(step_);
  const uint64_t test_rows = data_.test().rows();
  const uint64_t evaluated = data_.validates() ? left.evaluations * data_.validation_rows().size() + test_rows
                                               : left.evaluations * test_rows;
  return statistics_.seconds_left({.steps = left.steps,
                                   .evaluated_samples = evaluated,
                                   .checkpoints = left.checkpoints,
                                   .fitted_classifiers = left.evaluations});
}

float Trainer::Training::learning_rate(uint64_t step) const {
  return shard::learning_rate(job_.experiment.train, step, schedule_.steps_per_epoch(),
                              schedule_.total_steps());
}

}  // namespace modelet::agent
