#include "node_agent/agent/agent.h"

#include <poll.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/system/log.h"
#include "base/version.h"
#include "comm/control/snapshot_tables.h"
#include "comm/transport/endpoint.h"
#include "comm/transport/zmq.h"
#include "node_agent/agent/job/rank_of_run.h"
#include "node_agent/machine/capacity.h"
#include "node_agent/train/progress/run_schedule.h"

namespace modelet::agent {
namespace {

using namespace comm::control;  // NOLINT(google-build-using-namespace): the messages are this file's
                                // vocabulary

constexpr double kLastWords = 0.5;          // seconds for Leave to reach the scheduler
constexpr double kLongestSleep = 60;        // seconds
constexpr double kShareOfSnapshots = 0.1;   // of the link's speed, while a run trains
constexpr double kPassLogEvery = 1;         // seconds
constexpr size_t kMostLogBytes = 16 << 10;  // passed on in one event

uint64_t random_id() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

bool is_folder(const std::string& data_address) { return data_address.starts_with("ipc://"); }

std::string data_endpoint(const AgentOptions& options) {
  return is_folder(options.data_address) ? options.data_address + "/*"
                                         : "tcp://" + options.data_address + ":*";
}

// A folder that is closed to other users needs no encryption.
bool has_data_keys(const AgentOptions& options) {
  return options.scheduler.keys.has_value() && !is_folder(options.data_address);
}

constexpr auto kOptionsOfKeys = "--key FILE and --scheduler-key KEY";

void check_scheduler(const AgentOptions& options) {
  comm::check_endpoint(options.scheduler.endpoint, false);
  comm::require_keys(options.scheduler.endpoint, options.scheduler.keys.has_value(), options.insecure,
                     "the scheduler's address", kOptionsOfKeys);
}

AgentOptions checked(AgentOptions options) {
  if (options.name.empty()) throw UsageError("an agent needs a name");
  if (options.cores == 0) throw UsageError("an agent must offer at least one core");
  check_scheduler(options);
  if (options.data_address.empty())
    options.data_address = comm::address_on_the_way_to(options.scheduler.endpoint);
  if (options.data_address == "*" || options.data_address == "0.0.0.0" || options.data_address == "[::]")
    throw UsageError("the data address must be the address at which other agents reach this machine, not '" +
                     options.data_address + "'");
  comm::check_endpoint(data_endpoint(options), true);
  comm::require_keys(data_endpoint(options), has_data_keys(options), options.insecure,
                     "the agent's data address", kOptionsOfKeys);
  std::error_code failure;
  std::filesystem::create_directories(options.work_dir, failure);
  if (failure)
    throw UsageError(options.work_dir.string() + ": " + failure.message() +
                     " (making the folder for runs, --work-dir)");
  comm::ZmqTransport(
      {.bind = data_endpoint(options)});  // checks now, rather than in each run, that this machine has it
  return options;
}

// `lent` 0: everything.
template <class Amount>
void limit(Amount& offered, std::type_identity_t<Amount> lent) {
  if (lent > 0) offered = std::min(offered, lent);
}

void limit_link(AgentOptions& options, double mbps) {
  const double bytes_per_second = mbps * 1e6 / 8;
  options.sending = options.cache.counter = std::make_shared<comm::RateLimit>(bytes_per_second);
  if (mbps > 0) options.link_bytes_per_second = bytes_per_second;
  double& fetching = options.cache.fetch_bytes_per_second;
  if (mbps > 0) fetching = fetching > 0 ? std::min(fetching, bytes_per_second) : bytes_per_second;
}

void measure_missing(AgentOptions& options) {
  if (options.gflops > 0 && options.bf16_gflops == 0) options.bf16_gflops = options.gflops;
  if (options.gflops > 0 && options.memory_gbps > 0) return;
  const Speed speed = measure_speed(options.cores);
  if (options.gflops == 0) options.gflops = speed.gflops;
  if (options.bf16_gflops == 0) options.bf16_gflops = speed.bf16_gflops;
  if (options.memory_gbps == 0) options.memory_gbps = speed.memory_gbps;
}

// The folder of a run, beneath the work-dir. No other rank sees it.
std::filesystem::path folder_of(const PrepareT& message) {
  return fmt::format("runs/{:016x}-{}", message.pool, message.run);
}

// The bytes a second of the link that snapshots may use; 0: no limit, because the pool is on this machine.
double snapshot_rate(const AgentOptions& options) {
  return comm::is_loopback(data_endpoint(options)) ? 0 : kShareOfSnapshots * options.link_bytes_per_second;
}

std::vector<HolderT> all_of(const std::vector<std::unique_ptr<HolderT>>& holders) {
  std::vector<HolderT> all;
  for (const auto& holder : holders)
    if (holder != nullptr) all.push_back(*holder);
  return all;
}

SnapshotServiceOptions snapshot_options(const AgentOptions& options) {
  SnapshotServiceOptions snapshots{.node = options.name,
                                   .folder = options.work_dir / "holder",
                                   .bytes = options.snapshot_bytes,
                                   .local_store = options.local_store,
                                   .listen = data_endpoint(options),
                                   .sending = options.sending,
                                   .fetch_bytes_per_second = options.cache.fetch_bytes_per_second};
  if (has_data_keys(options)) snapshots.key = options.scheduler.keys->own;
  return snapshots;
}

RegisterT description(const AgentOptions& options, const SnapshotService& snapshots) {
  RegisterT self;
  self.name = options.name;
  self.incarnation = random_id();
  self.version = kVersion;
  self.cores = options.cores;
  self.memory_bytes = options.memory_bytes;
  self.gflops = options.gflops;
  self.bf16_gflops = options.bf16_gflops;
  self.memory_gbps = options.memory_gbps;
  self.data_endpoint = data_endpoint(options);
  self.holder_endpoint = snapshots.endpoint();
  self.holder_key = snapshots.public_key();
  self.fetch_key = snapshots.fetch_key();
  self.protocol = kControlVersion;
  self.private_data = options.private_data.names();
  return self;
}

}  // namespace

void complete_offer(AgentOptions& options, const Preferences& preferences) {
  if (options.cores == 0) options.cores = usable_cores();
  limit(options.cores, preferences.cores);
  if (options.memory_bytes == 0)
    options.memory_bytes = known_memory("say with --memory-mib what a run may use");
  limit(options.memory_bytes, preferences.memory_mib << 20);
  limit_link(options, preferences.link_mbps);
  measure_missing(options);
}

bool find_data_address(AgentOptions& options, int stop_fd) {
  constexpr int kLookAgain = 3000;  // ms
  check_scheduler(options);
  std::string logged;
  while (options.data_address.empty()) {
    try {
      options.data_address = comm::address_on_the_way_to(options.scheduler.endpoint);
    } catch (const Error& error) {  // the network, or its names, may be away just now
      if (std::exchange(logged, error.what()) != error.what())
        log_warning("{}; is the address right? This agent keeps trying", logged);
      pollfd stop{stop_fd, POLLIN, 0};
      if (::poll(&stop, 1, kLookAgain) > 0) return false;
    }
  }
  return true;
}

Agent::Agent(AgentOptions options)
    : options_(checked(std::move(options))),
      socket_(options_.scheduler),
      snapshots_(snapshot_options(options_),
                 [this](SnapshotHeldT held) {
                   mailbox_.post(Held{kept_pool_, std::move(held)});
                 }),
      core_(description(options_, snapshots_)) {
  if (!has_data_keys(options_) && !comm::is_private(data_endpoint(options_)))
    log_warning(
        "the data address {} has no keys: connections are neither encrypted nor authenticated, whoever "
        "reaches it can change what runs exchange",
        options_.data_address);
}

void Agent::run() {
  while (!ended_) {
    take_requests();
    handle(tick());
    notify_owner();
    if (clock_.now() - log_passed_at_ >= kPassLogEvery) pass_log_on();
    take_mail();
    listen();
    log_trouble();
  }
  notify_owner();
  socket_.close(kLastWords);
}

Tick Agent::tick() const {
  std::error_code failure;
  const auto disk = std::filesystem::space(options_.work_dir, failure);
  return {.step = runner_ ? runner_->step() : 0,
          .is_sending = snapshots_.is_sending(),
          .disk_free_bytes = failure ? 0 : disk.available,
          .suspended = options_.why_suspended ? options_.why_suspended() : "",
          .sent_bytes = options_.sending ? options_.sending->total() : 0,
          .received_bytes = options_.sending ? options_.sending->total_arrived() : 0};
}

void Agent::notify_owner() {
  if (!options_.on_beat) return;
  const uint64_t steps = steps_before_ + (runner_ ? runner_->steps_here() : 0);
  Beat beat{.done = steps - std::exchange(steps_reported_, steps), .registered = core_.is_registered()};
  if (LearnsFrom& from = learns_from_; runner_ && !from.name.empty()) {
    const uint64_t all = runner_->steps_learned(), before = std::exchange(from.reported, all);
    beat.learns_from = from.name;
    beat.samples = (all - before) * from.batch;
    beat.new_group = std::exchange(from.is_new, false);
  }
  if (runner_) {
    beat.run = runner_->run();
    beat.step = runner_->step();
    beat.nodes = runner_->size();
  }
  options_.on_beat(beat);
}

void Agent::request_stop() {
  ++stops_requested_;
  mailbox_.wake();
}

void Agent::leave(double seconds, const std::string& reason, bool comes_back) {
  mailbox_.post(AskedToLeave{seconds, reason, comes_back});
}

void Agent::take_requests() {
  for (; stops_forwarded_ < stops_requested_; ++stops_forwarded_)
    handle(AskedToLeave{stops_forwarded_ == 0 ? options_.leave_seconds : 0, "it was asked to end"});
}

// A message that cannot be sent is not lost: the core keeps it until it is confirmed over a new connection.
void Agent::handle(const AgentEvent& event) {
  if (ended_) return;
  for (const AgentAction& action : core_.handle(clock_.now(), event)) {
    std::visit([this](const auto& what) { carry_out(what); }, action);
    if (ended_) return;
  }
  if (std::exchange(is_connection_lost_, false)) handle(ConnectionLost{});
}

void Agent::take_mail() {
  for (const AgentEvent& event : mailbox_.take()) {
    const auto* mail = std::get_if<FromJob>(&event);
    if (mail != nullptr && std::holds_alternative<RunDoneT>(mail->message)) {
      pass_log_on();  // passes on why it ended
      notify_owner();  // what was learned must not be forgotten
      if (runner_) steps_before_ += runner_->steps_here();
      runner_.reset();
      snapshots_.hurry();
    }
    handle(event);
  }
}

void Agent::listen() {
  if (ended_) return;
  const double wait = std::clamp(core_.next_tick() - clock_.now(), 0.0, kLongestSleep);
  const auto message = socket_.receive(wait, mailbox_.fd());
  if (std::exchange(connection_, socket_.connections()) != socket_.connections()) handle(ConnectionLost{});
  if (message) handle(FromScheduler{*message});
}

// Passes on what was logged since the job began: it belongs to the job's run. What cannot be told to the
// scheduler now stays in the log until later.
void Agent::pass_log_on() {
  log_passed_at_ = clock_.now();
  if (options_.log == nullptr || !runner_ || !core_.is_registered()) return;
  const std::vector<std::string> lines = options_.log->take(kMostLogBytes);
  if (lines.empty()) return;
  RunEventT event;
  event.run = runner_->run();
  event.kind = comm::control::EventKind::Log;
  for (const std::string& line : lines) event.log += line + '\n';
  handle(FromJob{std::move(event)});
}

void Agent::log_trouble() {
  std::string trouble = socket_.trouble();
  if (trouble.empty() && !core_.is_registered() && clock_.now() - core_.silent_since() > core_.dead_after())
    trouble = "nobody answers at " + options_.scheduler.endpoint +
              ": is modelet-scheduler running there, and is the address right? This agent keeps asking";
  if (trouble == logged_trouble_) return;
  logged_trouble_ = std::move(trouble);
  if (!logged_trouble_.empty()) log_warning("{}", logged_trouble_);
}

// ---- what the core wants

void Agent::carry_out(const Send& action) {
  if (!socket_.send(action.message)) is_connection_lost_ = true;
}

void Agent::carry_out(const PrepareJob& action) {
  const PrepareT& message = action.prepare;
  try {
    TrainJob job = job_here(message);
    kept_pool_ = message.pool;
    learns_from_ = {.name = private_name(job.experiment),
                    .batch = job.experiment.train.batch};
    if (options_.log != nullptr) options_.log->take(SIZE_MAX);  // what other runs logged
    log_info("run {} '{}', epoch {}: rank {} of {}, {} threads, output in {}", message.run, message.name,
             message.epoch, job.rank, job.size, job.threads, job.out.string());
    runner_ = std::make_unique<JobRunner>(
        message, std::move(job), options_.make_job,
        comm::ZmqOptions{
            .bind = data_endpoint(options_), .curve = has_data_keys(options_), .sending = options_.sending},
        mailbox_, snapshots_of(message), data_source(message));
    if (!learns_from_.name.empty()) ++groups_here_[learns_from_.name];
    notify_owner();
  } catch (const std::exception& error) {
    RunDoneT refusal;
    refusal.run = message.run;
    refusal.epoch = message.epoch;
    refusal.outcome = Outcome::Failed;
    refusal.message = error.what();
    refusal.user_error = dynamic_cast<const UsageError*>(&error) != nullptr;
    mailbox_.post(FromJob{std::move(refusal)});
  }
}

void Agent::carry_out(const StartJob& action) {
  const StartT& message = action.start;
  std::vector<comm::Peer> ranks(message.endpoints.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].endpoint = message.endpoints[rank];
    if (!message.public_keys.empty()) ranks[rank].public_key = message.public_keys[rank];
  }
  if (runner_) runner_->start(std::move(ranks));
}

void Agent::carry_out(const StopJob&) {
  if (runner_) runner_->request_stop();
  snapshots_.hurry();  // a run that stops, or an agent that leaves, waits for its files
}

void Agent::carry_out(const TraceJob& action) {
  if (runner_) runner_->request_trace(action.steps);
}

void Agent::carry_out(const AbortJob& action) {
  if (runner_) runner_->abort(action.reason);
}

void Agent::carry_out(const DropSnapshots& action) {
  if (action.pool == kept_pool_) snapshots_.stable(action.run, action.step);  // pools number their runs alike
}

void Agent::carry_out(const AdmitHolders& action) { snapshots_.admit(all_of(action.message.holders)); }

void Agent::carry_out(const StoreAt& action) {
  if (action.port != 0) snapshots_.store_at(with_port(options_.scheduler, action.port));
}

void Agent::carry_out(const SaveSnapshots&) { snapshots_.leave(); }

void Agent::carry_out(const AgentLog& action) {
  if (action.is_warning)
    log_warning("{}", action.text);
  else
    log_info("{}", action.text);
}

void Agent::carry_out(const EndAgent& action) {
  ended_ = true;
  switch (action.why) {
    case EndAgent::Why::kLeft:
      return log_info("{}", action.text);
    case EndAgent::Why::kRefused:
      throw Error("the scheduler at " + options_.scheduler.endpoint + " refuses this agent: " + action.text);
    case EndAgent::Why::kStuck:
      log_error("{}", action.text);
      // Whoever starts programs again after a failure must do so for an agent that is to come back, and not for
      // one that was asked to end.
      std::quick_exit(action.comes_back ? static_cast<int>(ExitCode::kFailed)
                                        : options_.exit_code_when_asked);
  }
}

TrainJob Agent::job_here(const PrepareT& message) const {
  TrainJob job = job_of(message);
  const uint32_t wanted = job.experiment.train.threads;
  job.threads = wanted == 0 ? options_.cores : std::min(wanted, options_.cores);
  job.throttle = options_.throttle;
  job.snapshots.bytes_per_second = snapshot_rate(options_);
  job.snapshots.is_safe = [this](uint64_t step) { return snapshots_.is_stable(step); };
  job.out = options_.work_dir / folder_of(message);
  if (!is_private(job.experiment)) return job;
  const PrivateData& data = options_.private_data;
  const uint64_t step = message.snapshot == nullptr ? 0 : message.snapshot->step;
  job.private_file = data.file_for(job.experiment, message.learner,
                                   [&](uint64_t most) { return rounds_to_come(job, step, most); });
  // Also if the scheduler says that this is the run's first group, and for a run that repeats another.
  const auto here = groups_here_.find(private_name(job.experiment));
  const uint64_t groups = std::max(data.use_of(job.experiment).groups, here == groups_here_.end() ? 0 : here->second);
  job.former_groups = static_cast<uint32_t>(std::max<uint64_t>(job.former_groups, groups));
  job.identity.known = data.known_owners();
  if (const auto& keys = options_.scheduler.keys) job.identity.own = keys->own;
  job.before_round = [&data, experiment = job.experiment] { data.charge(experiment); };
  return job;
}

RunSnapshots Agent::snapshots_of(const PrepareT& message) {
  RunSnapshots snapshots{.service = snapshots_,
                         .group = {.pool = message.pool,
                                   .run = message.run,
                                   .epoch = message.epoch,
                                   .rank = message.rank,
                                   .members = message.node_names,
                                   .holders = all_of(message.holders),
                                   .bytes_per_second = snapshot_rate(options_)}};
  if (message.data_port != 0) snapshots.group.store = with_port(options_.scheduler, message.data_port);
  if (message.snapshot != nullptr) {
    snapshots.from = comm::control::snapshot_of(*message.snapshot);
    snapshots.group.from_step = snapshots.from->step;
  }
  return snapshots;
}

std::optional<DataSource> Agent::data_source(const PrepareT& message) const {
  if (message.train_data.empty() && message.test_data.empty() && message.division.empty()) return std::nullopt;
  const bool is_task = !message.division.empty();
  const auto id_of = [](const std::string& address) {
    return address.empty() ? std::nullopt : std::optional(comm::parse_content_id(address));
  };
  return DataSource{
      .train = id_of(message.train_data),
      .test = id_of(is_task ? "" : message.test_data),  // towers are tested together, by who submitted
      .division = id_of(message.division),
      .server = with_port(options_.scheduler, message.data_port),
      .cache = options_.cache,
      .node = options_.name};
}

}  // namespace modelet::agent
