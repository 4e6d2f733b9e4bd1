#include "node_agent/trainer.h"

#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/version.h"
#include "node_agent/best_model.h"
#include "node_agent/capacity.h"
#include "node_agent/evaluator.h"
#include "node_agent/label_parts.h"
#include "node_agent/rank_grid.h"
#include "node_agent/replica_sync.h"
#include "node_agent/same_run.h"
#include "node_agent/sharding.h"
#include "node_agent/step_times.h"
#include "node_agent/training_step.h"
#include "shard/batch_feed.h"
#include "shard/data/dataset.h"
#include "shard/data/split.h"
#include "shard/kernels/kernels.h"
#include "shard/learning_rate.h"
#include "shard/modelet_state.h"
#include "shard/network.h"

namespace modelet::agent {

using nlohmann::json;

namespace {

// Rounds that follow those of a step, in the order in which they are used: an evaluation takes many.
constexpr uint16_t kTimesRound = TrainingStep::kRounds - 1, kCheckpointRound = TrainingStep::kRounds,
                   kEvaluationRound = kCheckpointRound + 1, kBestRound = 65000, kFinishRound = 65001;

uint64_t peak_rss_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

unsigned thread_count(const TrainJob& job) {
  if (job.threads > 0) return job.threads;
  if (job.experiment.train.threads > 0) return job.experiment.train.threads;
  return usable_cores();
}

int replicas_of(const TrainJob& job) {
  const auto replicas = static_cast<int>(job.experiment.cluster.replicas);
  if (job.size % replicas != 0)
    throw UsageError("cluster.replicas is " + std::to_string(replicas) + ", and " + std::to_string(job.size) +
                     " node(s) do not make so many equal groups");
  return replicas;
}

constexpr const char* kEpochLoss = "epoch_loss";  // in a checkpoint: Impl::epoch_loss_

const std::vector<size_t> kFigureRanks = {1, 3, 5};  // the K of p_at_K and its like

void add_figures(json& event, const std::vector<shard::Figure>& figures) {
  for (const shard::Figure& figure : figures) event[figure.name] = figure.value;
}

json as_object(const std::vector<shard::Figure>& figures) {
  json object = json::object();
  add_figures(object, figures);
  return object;
}

}  // namespace

class Trainer::Impl {
 public:
  explicit Impl(TrainJob job)
      : job_(std::move(job)),
        replicas_(replicas_of(job_)),
        ranks_(job_.size / replicas_),
        pool_(thread_count(job_)),
        sharding_(cut_model(job_.experiment, job_.shape), job_.owner, job_.rank % ranks_, ranks_) {}

  void prepare();
  void run(comm::Group& group, const EventSink& events);

  std::atomic<bool> stop_requested{false};
  std::atomic<uint64_t> steps_done{0};
  std::atomic<uint64_t> memory{0};

 private:
  // One run over one group: what lives only as long as the group.
  struct Session {
    RankGrid& grid;
    const EventSink& events;
    TrainingStep step;
    Evaluator evaluator;
  };

  void load_data();
  uint64_t sync_buffers() const;
  void restore(const std::filesystem::path& resumed);
  void take_folder(const std::filesystem::path& resumed);
  bool one_step(Session& session);
  bool synchronise(Session& session, bool stop);
  void report_codecs(Session& session);
  void report_progress(Session& session);
  void end_epoch(Session& session);
  json run_state() const;
  shard::Metrics metrics() const;
  void require_metric() const;
  json validate(Session& session);
  void test(Session& session, comm::Tag tag);
  void return_to_best();
  void checkpoint(Session& session, comm::Tag tag);
  void finish(Session& session);
  void emit(const Session& session, const json& event) const {
    if (job_.rank == 0) session.events(event);
  }
  comm::Tag tag(uint16_t round) const { return {step_ - 1, round, 0}; }  // after the last step
  // After that step's evaluation and checkpoint: tags of a group must grow, an attempt is the larger part.
  comm::Tag end_tag(uint16_t round) const { return {step_ - 1, round, 1}; }
  uint64_t total_steps() const { return feed_->steps_per_epoch() * job_.experiment.train.epochs; }
  bool validates() const { return !validation_rows_.empty(); }
  uint64_t best_step() const { return validates() ? best_.step() : step_; }
  bool ended() const { return step_ == total_steps() || best_.exhausted(job_.experiment.train.patience); }
  bool ends_epoch() const { return ends_epoch(step_); }
  bool ends_epoch(uint64_t step) const { return step % feed_->steps_per_epoch() == 0; }
  bool evaluation_is_due() const {  // at the end of this epoch
    const uint32_t every = job_.experiment.train.evaluate_every;
    return step_ == total_steps() || (every > 0 && step_ / feed_->steps_per_epoch() % every == 0);
  }
  bool checkpoint_is_due() const { return checkpoint_is_due(step_); }
  bool checkpoint_is_due(uint64_t step) const {
    const uint32_t every = job_.experiment.train.checkpoint_every;
    return step == total_steps() || (every == 0 ? ends_epoch(step) : step % every == 0);
  }
  bool progress_is_due(uint64_t step) const {
    return step % job_.experiment.train.log_every == 0 || step == total_steps();
  }
  // Whether the ranks exchange anything between this many steps and the next one.
  bool exchanges_after(uint64_t step) const {
    return sync_ || progress_is_due(step) || ends_epoch(step) || checkpoint_is_due(step);
  }
  // The replicas share the work of writing: the modelets that `rank` writes into checkpoints.
  std::vector<ModeletSpec> written_by(int rank) const;
  double bytes_per_step() const {
    return steps_here_ == 0 ? 0 : static_cast<double>(bytes_sent_) / static_cast<double>(steps_here_);
  }
  double samples_per_second() const {
    return seconds_here_ > 0 ? static_cast<double>(samples_here_) / seconds_here_ : 0;
  }

  TrainJob job_;
  const int replicas_, ranks_;  // ranks of a replica
  shard::ThreadPool pool_;
  Sharding sharding_;
  shard::Dataset train_, test_;
  std::vector<uint32_t> validation_rows_;  // of train_; the others are trained on
  bool validation_has_labels_ = false;     // also of neurons that others hold
  std::optional<shard::Network> network_;
  std::optional<shard::BatchFeed> feed_;
  std::optional<ReplicaSync> sync_;  // with several replicas

  uint64_t step_ = 0;         // steps completed
  bool stop_wished_ = false;  // of this replica, not heard by the others yet
  double train_seconds_ =
      0;  // in steps, over all sessions of the run; evaluation and checkpoints not counted
  // Of this session:
  uint64_t steps_here_ = 0, samples_here_ = 0, bytes_sent_ = 0;
  double seconds_here_ = 0;
  StepTimes times_;
  double loss_sum_ = 0;  // since the last progress event
  uint64_t loss_steps_ = 0;
  double epoch_loss_sum_ = 0;  // since the epoch, or this session, began
  uint64_t epoch_loss_steps_ = 0;
  std::optional<double> epoch_loss_;  // mean of an epoch that is over but not evaluated and reported yet
  std::vector<float> inverse_propensities_;  // [labels]
  BestModel best_;                           // by validation
  std::vector<shard::Figure> figures_;       // of the last evaluation on data.test
  uint64_t tested_step_ = 0, checkpoint_step_ = 0;
  std::filesystem::path checkpoint_;
  std::optional<FileLock> folder_;  // of rank 0: nobody else trains into job_.out
};

void Trainer::Impl::load_data() {
  Experiment experiment = job_.experiment;
  Experiment::Data& data = experiment.data;
  if (!job_.train_file.empty()) data.train = job_.train_file;
  if (!job_.test_file.empty()) data.test = job_.test_file;
  const shard::LabelPart part{.neurons = output_neurons(sharding_.held()), .alone = !job_.train_file.empty()};
  train_ = shard::load_training_data(experiment, part);
  test_ = shard::load_dataset(data.test, data.normalize, train_.encoder());
  const DataShape shape = shard::describe_shape(train_, test_);
  if (shape.features != job_.shape.features || shape.labels != job_.shape.labels ||
      shape.train_rows != job_.shape.train_rows || shape.test_rows != job_.shape.test_rows ||
      shape.encoder != job_.shape.encoder)
    throw Error("the data at " + data.train +
                " is not the data that the run was planned for: this node sees " +
                std::to_string(shape.train_rows) + " samples, " + std::to_string(shape.features) +
                " features, " + std::to_string(shape.labels) + " labels");
  shard::RowSplit split = shard::split_rows(train_.rows(), data.validation, job_.experiment.train.seed);
  validation_rows_ = std::move(split.validation);
  const shard::BatchShare share{static_cast<uint32_t>(job_.rank / ranks_), static_cast<uint32_t>(replicas_)};
  feed_.emplace(train_, std::move(split.train), job_.experiment.train, pool_, share);
}

// What synchronising will take beside what it has now, at most.
uint64_t Trainer::Impl::sync_buffers() const {
  uint64_t most = 0;
  for (const auto& modelet : network_->modelets())
    most = std::max(most, sync_buffer_bytes(modelet->spec(), job_.experiment));
  return most;
}

void Trainer::Impl::prepare() {
  const std::filesystem::path resumed = job_.resume.empty() ? "" : shard::find_checkpoint(job_.resume);
  if (job_.rank == 0) shard::require_one_run(job_.out, resumed);
  load_data();
  network_.emplace(job_.experiment, job_.shape, sharding_.held(), true, pool_);
  if (resumed.empty())
    network_->initialise();
  else
    restore(resumed);
  if (replicas_ > 1) sync_.emplace(*network_);
  memory = network_->memory_bytes() + train_.memory_bytes() + test_.memory_bytes() +
           (sync_ ? sync_->memory_bytes() + sync_buffers() : 0);
  const std::vector<uint32_t> counts = shard::count_labels(train_);
  network_->set_label_counts(counts);
  inverse_propensities_ = shard::inverse_propensities(counts, train_.rows(), job_.experiment.metrics);
  if (validates()) require_metric();
  if (job_.rank == 0) take_folder(resumed);
}

void Trainer::Impl::take_folder(const std::filesystem::path& resumed) {
  folder_.emplace(shard::take_run_folder(job_.out, resumed));
  // The run ends with its best weights: they come along, should it go on in another folder.
  if (!resumed.empty() && best_.step() > 0)
    shard::bring_checkpoint(resumed.parent_path(), best_.step(), job_.out / "checkpoints");
}

void Trainer::Impl::restore(const std::filesystem::path& resumed) {
  const shard::Checkpoint checkpoint = shard::Checkpoint::open(resumed);
  require_same_run(checkpoint, job_);
  for (const auto& modelet : network_->modelets()) shard::restore_modelet(*modelet, checkpoint);
  checkpoint_ = checkpoint.folder();
  checkpoint_step_ = steps_done = step_ = checkpoint.index().step;
  if (step_ > total_steps())
    throw UsageError(checkpoint.folder().string() + ": has done " + std::to_string(step_) +
                     " steps, and the experiment ends after " + std::to_string(total_steps()) +
                     ": raise train.epochs to go on");
  const json extra = json::parse(checkpoint.index().extra);
  train_seconds_ = extra.value("train_seconds", 0.0);
  if (validates() && extra.contains("validation"))
    best_ = BestModel::restore(extra.at("validation"), job_.experiment.train.metric);
  if (!extra.contains(kEpochLoss)) return;
  if (!extra[kEpochLoss].is_number() || !ends_epoch() || best_.step() >= step_)
    throw FormatError(checkpoint.folder().string() +
                      ": its record of an epoch that was not evaluated makes no sense");
  epoch_loss_ = extra[kEpochLoss].get<double>();
  checkpoint_step_ = 0;  // this one is not what a run ends with
}

void Trainer::Impl::run(comm::Group& group, const EventSink& events) {
  MODELET_CHECK(network_.has_value(), "prepare() first");
  RankGrid grid(group, static_cast<uint32_t>(replicas_));
  Session session{
      grid, events, {*network_, sharding_, grid.replica()}, {*network_, sharding_, grid.replica()}};
  uint64_t parameters = 0;
  for (const ModeletSpec& spec : sharding_.cut()) parameters += spec.parameters();
  const Experiment::Train& train = job_.experiment.train;
  emit(session, {{"event", "started"},
                 {"run", job_.run},
                 {"epochs", train.epochs},
                 {"steps", total_steps()},
                 {"step", step_},
                 {"parameters", parameters},
                 {"nodes", job_.size},
                 {"replicas", replicas_},
                 {"threads", pool_.threads()},
                 {"features", job_.shape.features},
                 {"labels", job_.shape.labels},
                 {"train_rows", job_.shape.train_rows},
                 {"validation_rows", validation_rows_.size()},
                 {"instruction_set", shard::kernels::instruction_set()}});
  session.step.while_waiting([this] { feed_->finish_next(); });
  if (epoch_loss_) end_epoch(session);  // where the run was left
  if (!ended()) session.step.measure_exchange(step_);
  while (!ended()) {
    const bool stop = one_step(session);
    if (session.step.codecs().take_changed()) report_codecs(session);
    if (progress_is_due(step_)) report_progress(session);
    if (ends_epoch())
      epoch_loss_ = session.grid.mean(step_, epoch_loss_sum_ / static_cast<double>(epoch_loss_steps_));
    // First of all: an evaluation may take long.
    if (checkpoint_is_due() || stop) checkpoint(session, tag(kCheckpointRound));
    if (stop && step_ != total_steps()) {
      emit(session, {{"event", "interrupted"}, {"step", step_}, {"checkpoint", checkpoint_.string()}});
      throw Interrupted("stopped after step " + std::to_string(step_) + "; continue with --resume " +
                        checkpoint_.string());
    }
    if (ends_epoch()) end_epoch(session);
  }
  finish(session);
}

// Returns whether all stop now, because some rank wishes to.
bool Trainer::Impl::one_step(Session& session) {
  const Stopwatch watch;
  const uint64_t bytes_before = session.grid.totals().bytes_sent;
  times_.begin(session.grid.totals());
  const float rate =
      shard::learning_rate(job_.experiment.train, step_, feed_->steps_per_epoch(), total_steps());
  const shard::Batch& batch = feed_->at(step_, total_steps());
  const shard::Batch* const next = exchanges_after(step_ + 1) ? nullptr : &feed_->next();
  const StepResult result = session.step.run(batch, step_, rate, stop_requested, 0, next);
  samples_here_ += feed_->samples(step_);
  steps_done = ++step_;
  const bool stop = sync_ ? synchronise(session, result.stop) : result.stop;
  ++steps_here_;
  bytes_sent_ += session.grid.totals().bytes_sent - bytes_before;
  loss_sum_ += result.loss;
  ++loss_steps_;
  epoch_loss_sum_ += result.loss;
  ++epoch_loss_steps_;
  const double seconds = watch.seconds();
  times_.end(seconds, session.grid.totals());
  seconds_here_ += seconds;
  train_seconds_ += seconds;
  return stop;
}

// Replicas come together every few steps, and wholly where the common model is needed. One of them that
// wishes to stop is heard then.
bool Trainer::Impl::synchronise(Session& session, bool stop) {
  stop_wished_ |= stop;
  const bool whole = checkpoint_is_due() || (ends_epoch() && evaluation_is_due());
  if (whole) return sync_->settle(session.grid, step_, stop_wished_);
  if (step_ % job_.experiment.exchange.local_steps != 0) return false;
  const bool all_stop = sync_->average(session.grid, step_, stop_wished_);
  if (all_stop) sync_->settle(session.grid, step_, true);  // for the checkpoint
  return all_stop;
}

void Trainer::Impl::report_codecs(Session& session) {
  json event = session.step.codecs().describe();
  event["event"] = "exchange";
  event["step"] = step_;
  emit(session, event);
}

void Trainer::Impl::report_progress(Session& session) {
  if (loss_steps_ == 0) return;
  // Replicas that are ahead wait for the others here: that is time of training.
  const Stopwatch watch;
  const double loss = session.grid.mean(step_, loss_sum_ / static_cast<double>(loss_steps_));
  const json nodes = times_.report(session.grid, tag(kTimesRound));
  const double seconds = watch.seconds();
  seconds_here_ += seconds;
  train_seconds_ += seconds;
  const double seconds_per_step = seconds_here_ / static_cast<double>(steps_here_);
  json event = {{"event", "progress"},
                {"step", step_},
                {"steps", total_steps()},
                {"epoch", (step_ - 1) / feed_->steps_per_epoch() + 1},
                {"loss", loss},
                {"train_seconds", train_seconds_},
                {"samples_per_second", samples_per_second()},
                {"eta_seconds", seconds_per_step * static_cast<double>(total_steps() - step_)},
                {"bytes_sent_per_node_per_step", bytes_per_step()},
                {"wait_fraction", seconds_here_ > 0 ? times_.total_wait_seconds() / seconds_here_ : 0},
                {"learning_rate", shard::learning_rate(job_.experiment.train, step_ - 1,
                                                       feed_->steps_per_epoch(), total_steps())},
                {"nodes", nodes}};
  if (ranks_ > 1) event["micro_batches"] = session.step.micro_batches();
  emit(session, event);
  loss_sum_ = 0;
  loss_steps_ = 0;
}

shard::Metrics Trainer::Impl::metrics() const {
  const bool auc = shard::has_auc(job_.experiment.model.loss, job_.shape.labels);
  return {kFigureRanks, inverse_propensities_, auc ? job_.shape.labels : 0};
}

// log_loss is no choice: less of it is better.
void Trainer::Impl::require_metric() const {
  const std::string& wanted = job_.experiment.train.metric;
  std::string names;
  for (const shard::Figure& figure : metrics().figures()) {
    if (figure.name == "log_loss") continue;
    if (figure.name == wanted) return;
    names += (names.empty() ? "" : ", ") + figure.name;
  }
  throw UsageError("train.metric is '" + wanted + "'; this model can be judged by " + names);
}

json Trainer::Impl::validate(Session& session) {
  shard::Metrics metrics = this->metrics();
  comm::Tag next = tag(kEvaluationRound);
  if (!std::exchange(validation_has_labels_, true)) {
    feed_->finish_next();  // nobody reads the samples now
    next = complete_labels(train_, validation_rows_, session.grid.replica(), next);
  }
  session.evaluator.evaluate(train_, validation_rows_, metrics, next);
  // Scores of replicas may differ in their last bits, if their processors do; what follows from them must
  // not.
  std::vector<shard::Figure> of_all = metrics.figures();
  std::vector<double> values;
  for (const shard::Figure& figure : of_all) values.push_back(figure.value);
  values = session.grid.of_first_replica(step_, values);
  for (size_t i = 0; i < values.size(); ++i) of_all[i].value = values[i];
  json figures = as_object(of_all);
  best_.add(step_, figures, job_.experiment.train.metric);
  return figures;
}

void Trainer::Impl::test(Session& session, comm::Tag tag) {
  if (tested_step_ == step_) return;
  shard::Metrics metrics = this->metrics();
  session.evaluator.evaluate(test_, shard::all_rows(test_.rows()), metrics, tag);
  figures_ = metrics.figures();
  tested_step_ = step_;
}

// The weights of the step that validated best.
void Trainer::Impl::return_to_best() {
  if (best_.step() == 0) return;
  checkpoint_ = shard::checkpoint_of_step(job_.out / "checkpoints", best_.step());
  if (best_.step() == step_) return;
  network_->output().wait_for_rehash();
  const shard::Checkpoint best = shard::Checkpoint::open(checkpoint_);
  for (const auto& modelet : network_->modelets()) shard::restore_modelet(*modelet, best);
}

// The checkpoint of this step, if there is one, goes on from here as long as nothing says that this is done:
// a run that is killed meanwhile does it again.
void Trainer::Impl::end_epoch(Session& session) {
  const uint64_t epoch = step_ / feed_->steps_per_epoch();
  json event = {{"event", "epoch"},
                {"epoch", epoch},
                {"step", step_},
                {"loss", *epoch_loss_},
                {"train_seconds", train_seconds_},
                {"samples_per_second", samples_per_second()}};
  if (evaluation_is_due()) {
    if (validates()) {
      event["validation"] = validate(session);
    } else {
      test(session, tag(kEvaluationRound));
      add_figures(event, figures_);
    }
  }
  emit(session, event);
  epoch_loss_.reset();
  epoch_loss_sum_ = 0;
  epoch_loss_steps_ = 0;
  if (checkpoint_step_ != step_) {
    if (ended() || best_.step() == step_) checkpoint(session, tag(kBestRound));
  } else if (job_.rank == 0) {
    shard::amend_checkpoint(checkpoint_, best_step(), run_state().dump(),
                            job_.experiment.train.keep_checkpoints);
  }
}

// What a checkpoint keeps beside the modelets.
json Trainer::Impl::run_state() const {
  json state = {{"train_seconds", train_seconds_}};
  if (validates()) state["validation"] = best_.state();
  if (epoch_loss_) state[kEpochLoss] = *epoch_loss_;
  return state;
}

void Trainer::Impl::checkpoint(Session& session, comm::Tag tag) {
  network_->output().wait_for_rehash();
  const shard::CheckpointWriter writer(job_.out / "checkpoints", step_);
  std::vector<uint64_t> digests;
  const std::vector<ModeletSpec> mine = written_by(job_.rank);
  for (const auto& modelet : network_->modelets()) {
    if (std::ranges::find(mine, modelet->spec().id, &ModeletSpec::id) == mine.end()) continue;
    const shard::CheckpointEntry entry = shard::save_modelet(*modelet, writer);
    digests.push_back(entry.digest.bytes);
    digests.push_back(entry.digest.xxh3);
  }
  // Rank 0 makes the checkpoint visible once every rank's files are written.
  std::vector<size_t> counts;
  for (int rank = 0; rank < job_.size; ++rank) counts.push_back(2 * written_by(rank).size());
  const auto all = session.grid.all_gather_numbers(tag, digests, counts);
  checkpoint_step_ = step_;
  checkpoint_ = writer.folder();
  if (job_.rank != 0) return;
  shard::CheckpointIndex index{
      .modelet_version = kVersion, .step = step_, .experiment = job_.experiment, .shape = job_.shape};
  for (int rank = 0; rank < job_.size; ++rank) {
    size_t i = 0;
    for (const ModeletSpec& spec : written_by(rank)) {
      const auto& numbers = all[static_cast<size_t>(rank)];
      index.modelets.push_back(shard::checkpoint_entry(spec, {numbers[i], numbers[i + 1]}));
      i += 2;
    }
  }
  if (!train_.encoder().empty()) index.encoder = writer.write_encoder(train_.encoder());
  index.best_step = best_step();
  index.extra = run_state().dump();
  checkpoint_ = writer.commit(std::move(index), job_.experiment.train.keep_checkpoints);
  emit(session, {{"event", "checkpoint"}, {"step", step_}, {"path", checkpoint_.string()}});
}

std::vector<ModeletSpec> Trainer::Impl::written_by(int rank) const {
  std::vector<ModeletSpec> written;
  const std::vector<ModeletSpec> held = sharding_.modelets_of(rank % ranks_);
  for (size_t i = static_cast<size_t>(rank / ranks_); i < held.size(); i += static_cast<size_t>(replicas_))
    written.push_back(held[i]);
  return written;
}

void Trainer::Impl::finish(Session& session) {
  return_to_best();
  test(session, end_tag(kEvaluationRound));
  const std::vector<size_t> counts(static_cast<size_t>(job_.size), 2);
  const std::vector<uint64_t> mine = {static_cast<uint64_t>(bytes_per_step()), peak_rss_bytes()};
  uint64_t bytes = 0, rss = 0;
  for (const auto& numbers : session.grid.all_gather_numbers(end_tag(kFinishRound), mine, counts)) {
    bytes += numbers[0];
    rss = std::max(rss, numbers[1]);
  }
  json event = {{"event", "finished"},
                {"train_seconds", train_seconds_},
                {"samples_per_second", samples_per_second()},
                {"steps", step_},
                {"bytes_sent_per_node_per_step", bytes / counts.size()},
                {"peak_rss_bytes", rss},
                {"checkpoint", checkpoint_.string()}};
  add_figures(event, figures_);
  if (validates()) {
    event["validation"] = best_.figures();
    event["best_step"] = best_.step();
  }
  emit(session, event);
}

Trainer::Trainer(TrainJob job) : impl_(std::make_unique<Impl>(std::move(job))) {}
Trainer::~Trainer() = default;
void Trainer::prepare() { impl_->prepare(); }
void Trainer::run(comm::Group& group, const EventSink& events) { impl_->run(group, events); }
void Trainer::request_stop() { impl_->stop_requested = true; }
uint64_t Trainer::step() const { return impl_->steps_done; }
uint64_t Trainer::memory_bytes() const { return impl_->memory; }

}  // namespace modelet::agent
