#include "node_agent/agent/core/agent_core.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

namespace modelet::agent {
namespace {

namespace msg = comm::control;

constexpr double kRegisterInterval = 0.2;  // seconds between two attempts
constexpr double kPendingInterval = 2;     // the same while it waits to be let in
constexpr double kAbortGrace = 10;         // seconds in which an aborted job must end when the agent leaves
constexpr size_t kMostRuns = 1024;         // runs whose epochs are remembered
constexpr auto kIsLeaving = "the agent is leaving";

msg::RunDoneT failure(uint64_t run, uint32_t epoch, const std::string& why, bool retry) {
  msg::RunDoneT done;
  done.run = run;
  done.epoch = epoch;
  done.outcome = msg::Outcome::Failed;
  done.message = why;
  done.retry = retry;
  return done;
}

}  // namespace

std::vector<AgentAction> AgentCore::handle(double now, const AgentEvent& event) {
  now_ = now;
  if (last_received_ == 0) last_received_ = now;
  std::visit([this](const auto& what) { on(what); }, event);
  return std::exchange(actions_, {});
}

double AgentCore::next_tick() const {
  double next = next_beat_;
  if (ending_since_ > 0)
    next = std::min(next, ending_since_ + kAbortGrace);
  else if (leaving_)
    next = std::min(next, leaving_->deadline);
  return next;
}

// ---- time and the connection

void AgentCore::on(const Tick& tick) {
  is_sending_ = tick.is_sending;
  if (const double silent = now_ - last_received_; node_ != 0 && silent > dead_after_) {
    log(fmt::format("the scheduler has been silent for {:.1f} s", silent), true);
    node_ = 0;
    last_received_ = now_;
  }
  if (leaving_ && ending_since_ == 0 && now_ >= leaving_->deadline) leave_now(kIsLeaving);
  if (ending_since_ > 0 && now_ - ending_since_ > kAbortGrace)
    return act(
        EndAgent{EndAgent::Why::kStuck, "the run does not end; the process does", leaving_->comes_back});
  leave_if_free();
  if (now_ >= next_beat_ && !ended_) beat(tick);
}

void AgentCore::on(const ConnectionLost&) {
  if (node_ == 0) return;
  node_ = 0;
  next_beat_ = now_;
}

// Sets the run and epoch that the agent works for.
template <class Message>
void AgentCore::name_work(Message& message) const {
  if (next_) {
    message.run = next_->run;
    message.epoch = next_->epoch;
  } else if (job_ && job_->reported) {
    message.run = job_->run;
    message.epoch = job_->epoch;
  }
}

void AgentCore::beat(const Tick& tick) {
  if (node_ == 0) return register_now();
  msg::HeartbeatT beat;
  beat.node = node_;
  name_work(beat);
  if (!next_ && beat.run != 0) beat.step = tick.step;
  beat.number = ++beats_;
  beat.disk_free_bytes = tick.disk_free_bytes;
  beat.suspended = tick.suspended;
  beat.sent_bytes = tick.sent_bytes;
  beat.received_bytes = tick.received_bytes;
  next_beat_ = now_ + heartbeat_;
  act(Send{std::move(beat)});
}

void AgentCore::register_now() {
  next_beat_ = now_ + kRegisterInterval;
  msg::RegisterT message = self_;
  name_work(message);
  act(Send{std::move(message)});
}

// ---- the scheduler speaks

void AgentCore::on(const FromScheduler& event) {
  last_received_ = now_;
  std::visit([this](const auto& message) { on(message); }, event.message);
}

void AgentCore::on(const msg::RegisteredT& message) {
  if (pool_ != 0 && message.pool != pool_) {  // this pool does not know the runs of the other one
    outbox_.clear();
    epochs_.clear();
    holder_states_.clear();
    next_.reset();
    if (job_) abort_job("the scheduler has lost this run", false);
  }
  pool_ = message.pool;
  heartbeat_ = std::clamp(message.heartbeat_seconds, 0.01, 60.0);
  dead_after_ = std::max(message.dead_after_seconds, heartbeat_);
  const bool is_new = node_ == 0;
  node_ = message.node;
  next_beat_ = std::min(next_beat_, now_ + heartbeat_);
  if (std::exchange(store_port_, message.data_port) != message.data_port) act(StoreAt{message.data_port});
  if (!is_new) return;
  waits_for_.clear();
  next_beat_ = now_;  // the heartbeat confirms what follows
  log(fmt::format("registered as '{}'", self_.name));
  outbox_.for_each([this](const msg::ToSchedulerMessage& kept) { act(Send{kept}); });
  outbox_.sent_again(beats_);
  request_leave();
}

void AgentCore::on(const msg::AliveT& message) {
  if (message.number > beats_) return ignore("the confirmation of a heartbeat");
  outbox_.confirm(message.number);
}

void AgentCore::on(const msg::RegisterAgainT&) { on(ConnectionLost{}); }

void AgentCore::on(const msg::PendingT& message) {
  if (node_ != 0) return ignore("a request to wait");
  next_beat_ = now_ + kPendingInterval;
  if (std::exchange(waits_for_, message.reason) != message.reason)
    log(fmt::format("{}. This agent waits, and asks again", message.reason), true);
}

void AgentCore::on(const msg::RefusedT& message) {
  if (!leaving_) return act(EndAgent{EndAgent::Why::kRefused, message.reason});
  leaving_->released = true;
  if (job_) stop_job();
  leave_if_free();
}

void AgentCore::on(const msg::PrepareT& message) {
  const auto latest = epochs_.find(message.run);
  if (latest != epochs_.end() && message.epoch <= latest->second) return ignore("a new run");
  epochs_[message.run] = message.epoch;
  if (epochs_.size() > kMostRuns) epochs_.erase(epochs_.begin());

  if (leaving_ && (!job_ || leaving_->released)) return refuse(message, kIsLeaving);
  if (!job_) return prepare(message);
  const bool is_later = job_->reported && job_->run == message.run;
  if (!is_later && next_ && next_->run != message.run)
    return refuse(message, fmt::format("the agent still works for run {}", next_->run));
  if (!is_later && !next_ && job_->state != Job::State::kEnding)
    return refuse(message, fmt::format("the agent still works for run {}", job_->run));
  if (is_later && next_ && next_->run != message.run)
    give_up_next(fmt::format("the agent goes on with run {}", message.run), true);
  if (is_later) abort_job(fmt::format("its group is formed anew (epoch {})", message.epoch), false);
  next_ = message;
}

void AgentCore::prepare(msg::PrepareT message) {
  job_ = Job{.run = message.run, .epoch = message.epoch, .size = message.size};
  act(PrepareJob{std::move(message)});
}

void AgentCore::refuse(const msg::PrepareT& message, const std::string& why) {
  log(fmt::format("run {} refused: {}", message.run, why), true);
  post(failure(message.run, message.epoch, why, true));
}

void AgentCore::on(const msg::StartT& message) {
  if (!is_of_job(message.run, message.epoch) || message.epoch != job_->epoch ||
      job_->state != Job::State::kPrepared)
    return ignore("a start");
  const size_t size = message.endpoints.size();
  if (size != job_->size || (!message.public_keys.empty() && message.public_keys.size() != size))
    return abort_job("the scheduler's Start message makes no sense", true);
  job_->state = Job::State::kTraining;
  act(StartJob{message});
}

void AgentCore::on(const msg::StopT& message) {
  if (is_of_next(message.run, message.epoch)) return give_up_next("stopped before the first step", false);
  if (!is_of_job(message.run, message.epoch) || job_->state >= Job::State::kStopping) return ignore("a stop");
  stop_job();
}

void AgentCore::on(const msg::TraceT& message) {
  if (!is_of_job(message.run, message.epoch) || job_->state != Job::State::kTraining)
    return ignore("a request to trace");
  act(TraceJob{message.steps});
}

void AgentCore::on(const msg::AbortT& message) {
  if (is_of_next(message.run, message.epoch)) return give_up_next(message.reason, true);
  if (!is_of_job(message.run, message.epoch) || job_->state == Job::State::kEnding) return ignore("an abort");
  abort_job(message.reason, true);
}

// What was told last is told again after a reconnect, and may have found no files before.
void AgentCore::on(const msg::StableT& message) {
  // A later group may have gone on from an older snapshot.
  auto& latest = holder_state(message.run).stable;
  const std::pair now(message.epoch, message.step);
  if (now < latest) return ignore("a stable step");
  latest = now;
  act(DropSnapshots{pool_, message.run, message.epoch, message.step});
}

void AgentCore::on(const msg::AdmitT& message) {
  uint32_t& latest = holder_state(message.run).admitted;
  if (message.epoch < latest) return ignore("a list of nodes that may have files");
  latest = message.epoch;
  act(AdmitHolders{message});
}

AgentCore::HolderState& AgentCore::holder_state(uint64_t run) {
  if (!holder_states_.contains(run) && holder_states_.size() >= kMostRuns)
    holder_states_.erase(holder_states_.begin());
  return holder_states_[run];
}

void AgentCore::on(const msg::ReleasedT&) {
  if (!leaving_) return ignore("a release");
  leave_now("the scheduler has released the agent");
}

bool AgentCore::is_of_next(uint64_t run, uint32_t epoch) const {
  return next_ && next_->run == run && (epoch == 0 || epoch == next_->epoch);
}

bool AgentCore::is_of_job(uint64_t run, uint32_t epoch) const {
  return job_ && job_->reported && job_->run == run && (epoch == 0 || epoch == job_->epoch);
}

void AgentCore::give_up_next(const std::string& why, bool retry) {
  if (!next_) return;
  post(failure(next_->run, next_->epoch, why, retry));
  next_.reset();
}

void AgentCore::stop_job() {
  if (job_->state >= Job::State::kStopping) return;
  job_->state = Job::State::kStopping;
  act(StopJob{});
}

void AgentCore::abort_job(const std::string& reason, bool is_reported) {
  job_->reported = job_->reported && is_reported;
  if (job_->state == Job::State::kEnding) return;
  log(fmt::format("run {} aborted: {}", job_->run, reason), true);
  job_->state = Job::State::kEnding;
  act(AbortJob{reason});
}

// ---- the job speaks

void AgentCore::on(const FromJob& event) {
  std::visit([this](const auto& message) { on_job(message); }, event.message);
}

void AgentCore::on_job(const msg::PreparedT& message) {
  if (!is_of_job(message.run, message.epoch) || job_->state != Job::State::kPreparing) return;
  job_->state = Job::State::kPrepared;
  post(message);
}

void AgentCore::on_job(const msg::RunEventT& message) {
  if (!is_of_job(message.run, 0)) return;
  msg::RunEventT event = message;
  event.epoch = job_->epoch;
  event.number = ++events_;
  post(std::move(event));
}

void AgentCore::on_job(const msg::PeerMissedT& message) {
  if (is_of_job(message.run, message.epoch) && job_->state != Job::State::kEnding) post(message);
}

void AgentCore::on_job(const msg::RunDoneT& message) {
  if (!job_ || job_->run != message.run || job_->epoch != message.epoch) return;
  msg::RunDoneT done = message;
  if (done.outcome == msg::Outcome::Failed && !done.user_error)
    done.retry = done.retry || job_->state == Job::State::kEnding || leaving_;
  log(fmt::format("run {} ended here at step {}{}{}", done.run, done.step, done.message.empty() ? "" : ": ",
                  done.message));
  if (job_->reported) post(std::move(done));
  job_.reset();
  ending_since_ = 0;
  if (auto next = std::exchange(next_, {})) prepare(std::move(*next));
  leave_if_free();
}

void AgentCore::on(const Held& event) {
  if (event.pool == pool_) post(event.message);
}

void AgentCore::post(msg::ToSchedulerMessage message) {
  if (node_ != 0) act(Send{message});
  outbox_.add(std::move(message), beats_);
}

// ---- leaving

void AgentCore::on(const AskedToLeave& event) {
  const double deadline = now_ + event.seconds;
  if (!leaving_) {
    leaving_ = Leaving{.deadline = deadline, .reason = event.reason, .comes_back = event.comes_back};
    log(fmt::format("asked to leave ({}){}", event.reason,
                    job_ ? ": works on until the run can go on without it" : ""));
    act(SaveSnapshots{});
  } else {
    leaving_->deadline = std::min(deadline, leaving_->deadline);
    leaving_->comes_back = leaving_->comes_back && event.comes_back;
  }
  if (event.seconds <= 0) return leave_now(kIsLeaving);
  request_leave();
  leave_if_free();
}

void AgentCore::request_leave() {
  if (leaving_ && !leaving_->released && node_ != 0)
    act(Send{msg::LeaveRequestT{{}, std::max(0.0, leaving_->deadline - now_), leaving_->reason}});
}

void AgentCore::leave_now(const std::string& reason) {
  leaving_->released = true;
  give_up_next(reason, true);
  if (job_) {
    abort_job(reason, true);
    if (ending_since_ == 0) ending_since_ = now_;
  }
  leave_if_free();
}

void AgentCore::leave_if_free() {
  if (!leaving_ || job_ || ended_) return;
  // A free agent whose scheduler is away would never be released, so it does not wait for that.
  if (!leaving_->released && (node_ != 0 || !outbox_.empty())) return;
  if (node_ != 0 && is_sending_ && now_ < leaving_->deadline) return;
  if (node_ != 0) act(Send{msg::LeaveT{}});
  ended_ = true;
  act(EndAgent{EndAgent::Why::kLeft, "left the pool"});
}

void AgentCore::ignore(const char* message) {
  if (ignored_.next())
    log(fmt::format("ignored {}: nothing new, or not of the present work (number {})", message,
                    ignored_.count()));
}

void AgentCore::log(std::string text, bool is_warning) { act(AgentLog{is_warning, std::move(text)}); }

}  // namespace modelet::agent
