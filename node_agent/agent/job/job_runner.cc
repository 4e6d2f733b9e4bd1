#include "node_agent/agent/job/job_runner.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/parallel/idle_thread.h"
#include "base/parallel/throttle.h"
#include "base/system/clock.h"
#include "base/system/log.h"
#include "base/system/process.h"
#include "node_agent/agent/core/event_message.h"
#include "node_agent/agent/job/rank_of_run.h"

namespace modelet::agent {

using comm::control::Outcome;
using comm::control::PreparedT;
using comm::control::RunDoneT;
using comm::control::RunEventT;

namespace {

nlohmann::json with_time(nlohmann::json event) {
  event["time"] = utc_text(std::chrono::system_clock::now());
  return event;
}

}  // namespace

JobRunner::JobRunner(const comm::control::PrepareT& prepare, TrainJob job, JobFactory make_job,
                     comm::ZmqOptions data_socket, Mailbox& mailbox, RunSnapshots snapshots,
                     std::optional<DataSource> data)
    : run_(prepare.run),
      group_options_{.run = prepare.group_key,
                     .epoch = prepare.epoch,
                     .timeout_seconds = job.experiment.exchange.timeout_seconds,
                     .on_missing = [this](int rank, const std::string& why) { post_missed(rank, why); },
                     .on_found = [this](int rank) { post_missed(rank, "is back", true); },
                     .lz4 = job.experiment.exchange.lz4,
                     .node_names = prepare.node_names},
      rank_(job.rank),
      size_(job.size),
      data_socket_(std::move(data_socket)),
      mailbox_(mailbox),
      source_(std::move(data)),
      snapshots_(std::move(snapshots)),
      throttle_(job.throttle) {
  if (throttle_ != nullptr) throttle_->hurry(false);
  thread_ = std::thread([this, job = std::move(job), make_job = std::move(make_job)]() mutable {
    work(std::move(job), make_job);
  });
}

JobRunner::~JobRunner() {
  abort("the agent has no more use for this run");
  thread_.join();
}

uint64_t JobRunner::step() const {
  const std::lock_guard lock(mutex_);
  return job_ == nullptr ? 0 : job_->step();
}

uint64_t JobRunner::steps_here() const {
  const std::lock_guard lock(mutex_);
  return group_ != nullptr ? job_->step() - first_step_ : steps_done_;
}

uint64_t JobRunner::steps_learned() const {
  const std::lock_guard lock(mutex_);
  return group_ != nullptr ? job_->steps_learned() : steps_learned_;
}

void JobRunner::start(std::vector<comm::Peer> ranks) {
  const std::lock_guard lock(mutex_);
  ranks_ = std::move(ranks);
  changed_.notify_all();
}

void JobRunner::request_stop() {
  const std::lock_guard lock(mutex_);
  stop_requested_ = true;
  if (throttle_ != nullptr) throttle_->hurry(true);
  if (group_ != nullptr) job_->request_stop();
  changed_.notify_all();
}

void JobRunner::request_trace(uint32_t steps) {
  const std::lock_guard lock(mutex_);
  if (group_ != nullptr) job_->request_trace(steps);
}

void JobRunner::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return;
  aborted_ = true;
  abort_reason_ = reason;
  if (throttle_ != nullptr) throttle_->hurry(true);
  if (group_ != nullptr) group_->interrupt(reason);
  changed_.notify_all();
}

void JobRunner::work(TrainJob job, const JobFactory& make_job) {
  RunDoneT done;
  done.run = run_;
  done.epoch = group_options_.epoch;
  try {
    train(std::move(job), make_job);
    done.outcome = Outcome::Ok;
  } catch (...) {
    set_failure(done, std::current_exception(), aborted());
  }
  done.step = step();
  // Free the memory before anybody learns that this node is free again. On a busy machine that can take long,
  // and the agent's heartbeats need the lock.
  std::unique_ptr<Job> ended;
  {
    const std::lock_guard lock(mutex_);
    ended = std::move(job_);
  }
  ended.reset();
  data_.reset();
  give_back_freed_memory();
  mailbox_.post(FromJob{std::move(done)});
}

// The agent has listened at this address before, so this machine has lost it: another node must do.
std::unique_ptr<comm::ZmqTransport> JobRunner::listen() const {
  try {
    return std::make_unique<comm::ZmqTransport>(data_socket_);
  } catch (const UsageError& error) {
    throw PeerError(-1, std::string(error.what()) + " (start the agent again if its address has changed)");
  }
}

void JobRunner::train(TrainJob description, const JobFactory& make_job) {
  // Made before this thread may become an idle one: its threads, which move the messages for which other ranks wait,
  // would inherit that.
  std::unique_ptr<comm::ZmqTransport> transport = listen();
  leave_room();
  bring_snapshot(description);
  leave_room();
  if (source_)
    data_.emplace(
        *source_, description, [this](const nlohmann::json& event) { post_event(event); },
        [this] { check_wanted(); });
  leave_room();
  std::unique_ptr<Job> made = make_job(std::move(description));
  Job& job = *made;
  {
    const std::lock_guard lock(mutex_);
    job_ = std::move(made);
  }
  job.prepare([this](nlohmann::json event) {
    leave_room();
    check_wanted();
    if (!group_options_.node_names.empty())
      event["node"] = group_options_.node_names[static_cast<size_t>(rank_)];
    post_event(event);
  });
  PreparedT prepared;
  prepared.run = run_;
  prepared.epoch = group_options_.epoch;
  prepared.endpoint = transport->self().endpoint;
  prepared.public_key = transport->self().public_key;
  prepared.memory_bytes = job.memory_bytes();
  mailbox_.post(FromJob{std::move(prepared)});
  transport->connect(rank_, wait_for_start(), group_options_.run, group_options_.epoch);

  comm::Group group(std::move(transport), group_options_);
  enter_group(group);
  try {
    job.run(
        group, [this](const nlohmann::json& event) { post_event(event); },
        [this](const WrittenSnapshot& written) {
          snapshots_.service.take(written.step, written.keep, written.folder, written.files);
        });
  } catch (...) {
    leave_group();
    throw;
  }
  leave_group();
}

// Fetches the files of a snapshot that this rank needs to go on from it into the run's folder, from this
// node's own disk or from another node's.
void JobRunner::bring_snapshot(TrainJob& job) const {
  snapshots_.service.begin(snapshots_.group);
  if (!snapshots_.from) return;
  const std::function<void()> check = [this] { check_wanted(); };
  agent::bring_snapshot(*snapshots_.from, job,
                        [&](std::span<const std::string> names, const std::filesystem::path& folder) {
                          snapshots_.service.bring(*snapshots_.from, names, folder, check);
                        });
}

void JobRunner::post_event(const nlohmann::json& event) {
  RunEventT message = event_message(with_time(event));
  message.run = run_;
  message.epoch = group_options_.epoch;
  mailbox_.post(FromJob{std::move(message)});
}

void JobRunner::post_missed(int rank, const std::string& why, bool over) {
  comm::control::PeerMissedT message;
  message.run = run_;
  message.epoch = group_options_.epoch;
  message.rank = static_cast<uint32_t>(rank);
  message.why = why;
  message.over = over;
  message.step = step();
  if (!over) log_warning("run {}: {}", run_, why);
  mailbox_.post(FromJob{std::move(message)});
}

// Called by the job's thread between two parts of the work that comes before the first step. That work, too, gives way
// to others, and waits while the agent is suspended. Not called while data is fetched: a connection that nobody reads
// for long ends.
void JobRunner::leave_room() const {
  if (throttle_ == nullptr) return;
  become_idle_thread();
  throttle_->pass();
  check_wanted();
}

// Called while there is no group. Throws if the run was aborted or stopped.
void JobRunner::check_wanted() const {
  const std::lock_guard lock(mutex_);
  if (aborted_) throw Interrupted(abort_reason_);
  if (stop_requested_) throw Error("stopped before the first step");
}

std::vector<comm::Peer> JobRunner::wait_for_start() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !ranks_.empty() || aborted_ || stop_requested_; });
  if (aborted_) throw Interrupted(abort_reason_);
  if (!ranks_.empty()) return ranks_;  // the group runs, so a stop must end all ranks after the same step
  throw Error("stopped before the first step");
}

bool JobRunner::aborted() const {
  const std::lock_guard lock(mutex_);
  return aborted_;
}

void JobRunner::enter_group(comm::Group& group) {
  const std::lock_guard lock(mutex_);
  group_ = &group;
  first_step_ = job_->step();  // the job has been prepared, so a checkpoint has been restored
  if (aborted_) group.interrupt(abort_reason_);
  if (stop_requested_) job_->request_stop();
}

void JobRunner::leave_group() {
  const std::lock_guard lock(mutex_);
  group_ = nullptr;
  steps_done_ = job_->step() - first_step_;
  steps_learned_ = job_->steps_learned();
}

}  // namespace modelet::agent
