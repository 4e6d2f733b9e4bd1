#include "node_agent/agent/agent.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/system/log.h"
#include "base/version.h"
#include "comm/transport/endpoint.h"
#include "comm/transport/zmq.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::agent {
namespace {

using namespace comm::control;  // NOLINT(google-build-using-namespace): the messages are this file's
                                // vocabulary

constexpr double kRegisterInterval = 0.2;  // seconds between two attempts
constexpr double kAbortGrace = 10;  // seconds an aborted run may take to end before the process ends itself
constexpr double kLastWords = 0.5;  // seconds for Leave to reach the scheduler

uint64_t random_id() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

bool is_folder(const std::string& data_address) { return data_address.starts_with("ipc://"); }

std::string data_endpoint(const AgentOptions& options) {
  return is_folder(options.data_address) ? options.data_address + "/*"
                                         : "tcp://" + options.data_address + ":*";
}

// A folder that is closed to others needs no encryption.
bool has_data_keys(const AgentOptions& options) {
  return options.scheduler.keys.has_value() && !is_folder(options.data_address);
}

AgentOptions checked(AgentOptions options) {
  if (options.name.empty()) throw UsageError("an agent needs a name");
  if (options.cores == 0) throw UsageError("an agent must offer at least one core");
  constexpr auto kOptions = "--key FILE and --scheduler-key KEY";
  comm::check_endpoint(options.scheduler.endpoint, false);
  comm::require_keys(options.scheduler.endpoint, options.scheduler.keys.has_value(), options.insecure,
                     "the scheduler's address", kOptions);
  if (options.data_address.empty())
    options.data_address = comm::address_on_the_way_to(options.scheduler.endpoint);
  if (options.data_address == "*" || options.data_address == "0.0.0.0" || options.data_address == "[::]")
    throw UsageError("the data address must be the address at which other agents reach this machine, not '" +
                     options.data_address + "'");
  comm::check_endpoint(data_endpoint(options), true);
  comm::require_keys(data_endpoint(options), has_data_keys(options), options.insecure,
                     "the agent's data address", kOptions);
  std::error_code failure;
  std::filesystem::create_directories(options.work_dir, failure);
  if (failure)
    throw UsageError(options.work_dir.string() + ": " + failure.message() +
                     " (making the folder for runs, --work-dir)");
  comm::ZmqTransport(
      {.bind = data_endpoint(options)});  // checks now, rather than in each run, that this machine has it
  return options;
}

}  // namespace

Agent::Agent(AgentOptions options)
    : options_(checked(std::move(options))), incarnation_(random_id()), socket_(options_.scheduler) {
  if (!has_data_keys(options_) && !comm::is_private(data_endpoint(options_)))
    log_warning(
        "the data address {} has no keys: connections are neither encrypted nor authenticated, whoever "
        "reaches it can change what runs exchange",
        options_.data_address);
}

void Agent::run() {
  last_heard_ = clock_.now();
  while (stops_requested_ == 0 || !run_has_ended_for_leaving()) {
    beat();
    forward_mail();
    const double wait = std::max(0.0, next_beat_ - clock_.now());
    if (const auto message = socket_.receive(wait, mailbox_.fd())) {
      last_heard_ = clock_.now();
      std::visit([this](const auto& body) { on(body); }, *message);
    }
    abort_if_scheduler_is_gone();
    tell_trouble();
  }
  if (node_ != 0) socket_.send(LeaveT{});
  socket_.close(kLastWords);
  log_info("left the pool");
}

void Agent::request_stop() {
  ++stops_requested_;
  mailbox_.wake();
}

void Agent::beat() {
  if (clock_.now() < next_beat_) return;
  next_beat_ = clock_.now() + (node_ != 0 ? heartbeat_ : kRegisterInterval);
  if (node_ != 0) {
    socket_.send(HeartbeatT{{}, node_, runner_ ? runner_->run() : 0, runner_ ? runner_->step() : 0});
  } else if (stops_requested_ == 0 && runner_ == nullptr) {  // an agent may get work as soon as it registers
    RegisterT message;
    message.name = options_.name;
    message.incarnation = incarnation_;
    message.version = kVersion;
    message.cores = options_.cores;
    message.memory_bytes = options_.memory_bytes;
    message.gflops = options_.gflops;
    message.bf16_gflops = options_.bf16_gflops;
    message.memory_gbps = options_.memory_gbps;
    message.data_endpoint = data_endpoint(options_);
    socket_.send(std::move(message));
  }
}

void Agent::forward_mail() {
  for (ToSchedulerMessage& message : mailbox_.take()) {
    if (const auto* done = std::get_if<RunDoneT>(&message)) {
      log_info("run {} ended here at step {}{}{}", done->run, done->step, done->message.empty() ? "" : ": ",
               done->message);
      runner_.reset();
      aborting_since_ = 0;
      if (node_ == 0) next_beat_ = clock_.now();
    }
    socket_.send(std::move(message));
  }
}

void Agent::on(const RegisteredT& message) {
  if (session_ != 0 && message.session != session_) abort_run("the scheduler was restarted");
  if (node_ == 0) log_info("registered at {} as '{}'", options_.scheduler.endpoint, options_.name);
  node_ = message.node;
  session_ = message.session;
  heartbeat_ = std::clamp(message.heartbeat_seconds, 0.01, 60.0);
  dead_after_ = std::max(message.dead_after_seconds, heartbeat_);
  next_beat_ = std::min(next_beat_, clock_.now() + heartbeat_);
}

// The scheduler was restarted, or took this agent for dead: in either case nobody waits for its run any more.
void Agent::on(const RegisterAgainT&) {
  abort_run("the scheduler was restarted, or had lost this agent");
  node_ = 0;
  next_beat_ = clock_.now();
}

void Agent::on(const RefusedT& message) {
  throw Error("the scheduler at " + options_.scheduler.endpoint + " refuses this agent: " + message.reason);
}

// Whether the owner of this machine allows the folders, and whose runs they hold: before data is fetched.
void Agent::check_folders(const TrainJob& job, const RunOwner& owner) const {
  if (options_.check_folders) options_.check_folders(job);
  if (!job.resume.empty()) require_own_run(job.resume, owner);
  require_own_run(job.out, owner);
}

// The paths are checked against what this machine's owner allows before anything is written to them.
std::unique_ptr<Job> Agent::owned_job(TrainJob job, const RunOwner& owner) const {
  const std::filesystem::path out = job.out;
  std::unique_ptr<Job> made = options_.make_job(std::move(job));
  claim_run_folder(out, owner);
  return made;
}

void Agent::on(const PrepareT& message) {
  RunDoneT refusal;
  refusal.run = message.run;
  refusal.epoch = message.epoch;
  refusal.outcome = Outcome::Failed;
  try {
    if (stops_requested_ > 0) throw Error("the agent is leaving");
    if (runner_ != nullptr) throw Error("the agent still works for run " + std::to_string(runner_->run()));
    TrainJob job = checked_job(message);
    const RunOwner owner{message.submitter, message.by_admin};
    log_info("run {} '{}': rank {} of {}, {} threads, output in {}", message.run, message.name, job.rank,
             job.size, job.threads, job.out.string());
    runner_ = std::make_unique<JobRunner>(
        message, std::move(job), [this, owner](const TrainJob& asked) { check_folders(asked, owner); },
        [this, owner](TrainJob made_for) { return owned_job(std::move(made_for), owner); },
        comm::ZmqOptions{.bind = data_endpoint(options_), .curve = has_data_keys(options_)}, mailbox_,
        data_source(message));
  } catch (const std::exception& error) {
    refusal.message = error.what();
    refusal.user_error = dynamic_cast<const UsageError*>(&error) != nullptr;
    log_warning("run {} refused: {}", message.run, error.what());
    socket_.send(std::move(refusal));
  }
}

TrainJob Agent::checked_job(const PrepareT& message) const {
  if (message.shape == nullptr || message.size == 0 || message.rank >= message.size ||
      message.node_names.size() != message.size)
    throw FormatError("the scheduler's Prepare message makes no sense");
  TrainJob job;
  job.run = message.name;
  job.experiment = parse_experiment(message.experiment, "experiment of run " + message.name);
  const ShapeT& shape = *message.shape;
  job.shape = {shape.features,         shape.labels,         shape.train_rows, shape.test_rows,
               shape.features_per_row, shape.labels_per_row, shape.encoder,    shape.fingerprint};
  const uint32_t replicas = job.experiment.cluster.replicas;
  if (message.size % replicas != 0 ||
      message.owner.size() != partition_model(job.experiment, job.shape).size() ||
      *std::max_element(message.owner.begin(), message.owner.end()) >= message.size / replicas)
    throw FormatError(
        "the scheduler's placement does not fit the experiment: use the same release everywhere");
  job.owner = message.owner;
  job.rank = static_cast<int>(message.rank);
  job.size = static_cast<int>(message.size);
  const uint32_t wanted = job.experiment.train.threads;
  job.threads = wanted == 0 ? options_.cores : std::min(wanted, options_.cores);
  job.resume = message.resume;
  std::filesystem::path folder = message.out;
  if (folder.empty() && !job.resume.empty()) folder = shard::run_of(job.resume);
  // The numbers of runs begin anew with each scheduler, which the session identifies.
  if (folder.empty()) folder = fmt::format("{}-{:04x}-{}", message.name, session_ & 0xffff, message.run);
  job.out = options_.work_dir / folder;  // an absolute folder stays what it is
  return job;
}

std::optional<DataSource> Agent::data_source(const PrepareT& message) const {
  if (message.train_data.empty()) return std::nullopt;
  return DataSource{.train = comm::parse_content_id(message.train_data),
                    .test = comm::parse_content_id(message.test_data),
                    .server = with_port(options_.scheduler, message.data_port),
                    .cache = options_.cache,
                    .node = options_.name};
}

void Agent::on(const StartT& message) {
  if (runner_ == nullptr || runner_->run() != message.run) return;
  const size_t size = message.endpoints.size();
  if (static_cast<int>(size) != runner_->size() ||
      (!message.public_keys.empty() && message.public_keys.size() != size))
    return abort_run("the scheduler's Start message makes no sense");
  std::vector<comm::Peer> ranks(size);
  for (size_t rank = 0; rank < size; ++rank) {
    ranks[rank].endpoint = message.endpoints[rank];
    if (!message.public_keys.empty()) ranks[rank].public_key = message.public_keys[rank];
  }
  runner_->start(std::move(ranks));
}

void Agent::on(const StopT& message) {
  if (runner_ != nullptr && runner_->run() == message.run) runner_->request_stop();
}

void Agent::on(const AbortT& message) {
  if (runner_ != nullptr && runner_->run() == message.run) abort_run(message.reason);
}

void Agent::abort_run(const std::string& reason) {
  if (runner_ == nullptr || aborting_since_ != 0) return;
  log_warning("run {} aborted: {}", runner_->run(), reason);
  aborting_since_ = clock_.now();
  runner_->abort(reason);
}

void Agent::abort_if_scheduler_is_gone() {
  const double silent = clock_.now() - last_heard_;
  if (node_ == 0 || silent <= dead_after_) return;
  log_warning("the scheduler at {} has been silent for {:.1f} s", options_.scheduler.endpoint, silent);
  abort_run("the scheduler is gone");
  node_ = 0;
  last_heard_ = clock_.now();
}

void Agent::tell_trouble() {
  std::string trouble = socket_.trouble();
  if (trouble.empty() && node_ == 0 && clock_.now() - last_heard_ > dead_after_)
    trouble = "nobody answers at " + options_.scheduler.endpoint +
              ": is modelet-scheduler running there, and is the address right? This agent keeps asking";
  if (trouble == told_trouble_) return;
  told_trouble_ = std::move(trouble);
  if (!told_trouble_.empty()) log_warning("{}", told_trouble_);
}

// Asks the run to end with a checkpoint. A second request, or too long a wait, aborts it.
bool Agent::run_has_ended_for_leaving() {
  if (runner_ == nullptr) return true;
  const double now = clock_.now();
  if (leaving_since_ == 0) {
    log_info("asked to leave: the run stops at its next step");
    leaving_since_ = now;
    runner_->request_stop();
  }
  if (stops_requested_ > 1 || now - leaving_since_ > options_.stop_grace) abort_run("the agent is leaving");
  if (aborting_since_ != 0 && now - aborting_since_ > kAbortGrace) {
    log_error("the run does not end; the process does");
    std::quick_exit(static_cast<int>(ExitCode::kFailed));
  }
  return false;
}

}  // namespace modelet::agent
