#include "tests/simulation/scheduler_process.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/simulation/pool.h"

namespace modelet::simulation {
namespace {

constexpr double kHeartbeat = 1, kStopGrace = 20, kHoldGrace = 60, kOlderAfter = 10, kLeftOut = 60,
                 kRestarted = 3;  // seconds
constexpr double kForgottenShare = 0.1;

}  // namespace

// ---- the ledger

void Ledger::write(const scheduler::Records& changes) {
  if (changes.pool) pool_ = changes.pool;
  for (const auto& run : changes.runs) {
    std::string submission = run.submission.empty() ? runs_[run.id].submission : run.submission;
    runs_[run.id] = run;
    runs_[run.id].submission = std::move(submission);
  }
  for (const auto& event : changes.events) events_[event.run].push_back(event);
  for (const auto& name : changes.names) names_[name.name] = name;
  for (const uint64_t run : changes.forgotten_runs) {
    runs_.erase(run);
    events_.erase(run);
  }
}

scheduler::Records Ledger::read() const {
  scheduler::Records all;
  all.pool = pool_;
  for (const auto& [id, run] : runs_) all.runs.push_back(run);
  for (const auto& [id, events] : events_) all.events.insert(all.events.end(), events.begin(), events.end());
  for (const auto& [name, record] : names_) all.names.push_back(record);
  return all;
}

// ---- the process

SchedulerProcess::SchedulerProcess(Pool& pool, bool has_store)
    : ControlServer(pool.world, 0), pool_(pool), has_store_(has_store), disk_(pool.world, pool.promises, "") {
  pool.network.serve(*this);
}

void SchedulerProcess::start() {
  if (is_alive()) return;
  born();
  scheduler::CoreOptions options;
  options.pool = pool_.world.rng().next();
  options.heartbeat = kHeartbeat;
  options.stop_grace = kStopGrace;
  options.hold_grace = kHoldGrace;
  options.older_after = kOlderAfter;
  options.left_out = kLeftOut;
  options.data_port = has_store_ ? 1 : 0;
  scheduler::Records records = ledger_.read();
  if (pool_.mutant == Mutant::kTasksAreForgotten)
    std::erase_if(records.runs, [](const scheduler::RunRecord& run) {
      const auto text = nlohmann::json::parse(run.text);
      return text.contains("parent") &&
             !scheduler::has_ended(static_cast<msg::RunState>(text.at("state").get<int>()));
    });
  core_ = std::make_unique<scheduler::Core>(options, records);
  pool_.world.note("the scheduler starts");
  tick();
}

void SchedulerProcess::tick() {
  post(kHeartbeat, [this] {
    handle(scheduler::Tick{});
    if (is_alive()) tick();
  });
}

void SchedulerProcess::crash(double seconds) {
  if (!is_alive()) return;
  pool_.world.note("the scheduler is killed");
  died();
  crash_point_ = 0;
  pool_.network.server_died();
  pool_.world.after(seconds, [this] { start(); });
  if (const auto then = std::exchange(after_crash_, {})) then();
}

void SchedulerProcess::kill() { crash(kRestarted); }

void SchedulerProcess::crash_at(uint64_t point, double seconds, std::function<void()> then) {
  crash_point_ = points_ + point;
  crash_seconds_ = seconds;
  after_crash_ = std::move(then);
}

bool SchedulerProcess::is_point() {
  if (++points_ != crash_point_) return false;
  crash(crash_seconds_);
  return true;
}

void SchedulerProcess::handle(const scheduler::Event& event) {
  carry_out(core_->handle(pool_.world.now() + 1, event));
  while (is_alive() && !gone_.empty()) {
    const std::string peer = gone_.back();
    gone_.pop_back();
    carry_out(core_->handle(pool_.world.now() + 1, scheduler::PeerGone{peer}));
  }
  gone_.clear();
}

void SchedulerProcess::carry_out(std::vector<scheduler::Action> actions) {
  const bool persists = !actions.empty() && std::holds_alternative<scheduler::Persist>(actions.front());
  if (persists && pool_.mutant == Mutant::kSendBeforePersist)
    std::rotate(actions.begin(), actions.begin() + 1, actions.end());
  for (const scheduler::Action& action : actions) {
    const bool counts =
        std::holds_alternative<scheduler::Persist>(action) || std::holds_alternative<scheduler::Send>(action);
    if (persists && counts && is_point()) return;
    std::visit([this](const auto& what) { carry_out(what); }, action);
  }
  if (persists) is_point();
}

// Changes what a node is told about its task, as if the scheduler had made a mistake.
bool SchedulerProcess::mutate(msg::FromSchedulerMessage& message) const {
  if (const auto* abort = std::get_if<msg::AbortT>(&message);
      abort && pool_.mutant == Mutant::kGivenUpTasksGoOn)
    return std::ranges::none_of(core_->runs(),
                                [&](const auto& run) { return run.run == abort->run && run.parent != 0; });
  auto* prepare = std::get_if<msg::PrepareT>(&message);
  if (prepare && pool_.mutant == Mutant::kTasksAreSwapped && !prepare->division.empty() && prepare->epoch > 1)
    prepare->name.back() = prepare->name.back() == '0' ? '1' : '0';
  return true;
}

void SchedulerProcess::carry_out(const scheduler::Send& original) {
  scheduler::Send action = original;
  if (!mutate(action.message)) return;
  if (std::holds_alternative<msg::StopT>(action.message) && pool_.mutant == Mutant::kStopsAreLost) return;
  if (const auto* prepare = std::get_if<msg::PrepareT>(&action.message)) keep_start(*prepare);
  pool_.promises.sent(action.peer, action.message);
  if (!pool_.network.send(action.peer, action.message)) gone_.push_back(action.peer);
}

// What a run goes on from may be another run's: a copy of a task begins with what the first one has stored.
void SchedulerProcess::keep_start(const msg::PrepareT& prepare) {
  if (prepare.snapshot == nullptr) return;
  for (const comm::SnapshotFile& file : msg::snapshot_of(*prepare.snapshot).files)
    if (disk_.read(file.content)) disk_.refer(prepare.run, file.content);
}

void SchedulerProcess::carry_out(const scheduler::Log& action) {
  pool_.world.note("scheduler: {}", action.text);
}

void SchedulerProcess::carry_out(const scheduler::PlanRequest& action) {
  post(pool_.world.between(0.01, 0.5), [this, answer = scheduler::carry_out(action)] { handle(answer); });
}

void SchedulerProcess::carry_out(const scheduler::Persist& action) {
  if (pool_.mutant == Mutant::kForgetRecords && pool_.world.chance(kForgottenShare)) return;
  pool_.promises.persisted(action.records);
  ledger_.write(action.records);
}

void SchedulerProcess::received(const std::string& peer, const msg::ToSchedulerMessage& message) {
  if (const auto* arrival = std::get_if<msg::RegisterT>(&message)) pool_.promises.returned(arrival->name);
  if (std::holds_alternative<msg::LeaveT>(message))
    if (const Node* node = pool_.node_of_peer(peer)) pool_.promises.announced(node->name());
  if (pool_.mutant == Mutant::kNoFencingOfAgents)
    return handle(scheduler::Received{peer, without_fence(message)});
  if (const auto* event = std::get_if<msg::RunEventT>(&message);
      event && pool_.mutant == Mutant::kDuplicatesCount)
    return handle(scheduler::Received{peer, as_new(*event)});
  if (const auto* submit = std::get_if<msg::SubmitT>(&message);
      submit && pool_.mutant == Mutant::kTokensAreLost) {
    msg::SubmitT other = *submit;
    other.token = 0;
    return handle(scheduler::Received{peer, std::move(other)});
  }
  if (const auto* submit = std::get_if<msg::SubmitT>(&message);
      submit && pool_.mutant == Mutant::kTurnsAreLost) {
    msg::SubmitT preferred = *submit;
    preferred.priority = static_cast<int32_t>(submit->token);
    return handle(scheduler::Received{peer, std::move(preferred)});
  }
  if (const auto* stop = std::get_if<msg::StopRunT>(&message)) pool_.promises.asked_to_stop(stop->run);
  if (std::holds_alternative<msg::LeaveRequestT>(message) && pool_.mutant == Mutant::kReleasedTooEarly)
    pool_.network.send(peer, msg::ReleasedT{});
  handle(scheduler::Received{peer, message});
}

msg::RunEventT SchedulerProcess::as_new(msg::RunEventT event) {
  auto json = nlohmann::json::parse(event.json);
  json["time"] = fmt::format("{}", ++events_as_new_);
  event.json = json.dump();
  event.number = events_as_new_;
  return event;
}

// Changes a message so that it seems to come from the present group.
msg::ToSchedulerMessage SchedulerProcess::without_fence(msg::ToSchedulerMessage message) const {
  std::map<uint64_t, uint32_t> epochs;
  for (const msg::RunStatusT& run : core_->runs()) epochs[run.run] = run.epoch;
  const auto change = [&](auto& table) {
    if constexpr (requires {
                    table.run;
                    table.epoch;
                  })
      if (const auto found = epochs.find(table.run); found != epochs.end()) table.epoch = found->second;
  };
  if (!std::holds_alternative<msg::RegisterT>(message)) std::visit(change, message);
  return message;
}

std::vector<comm::Snapshot> SchedulerProcess::files_of(uint64_t run) {
  std::vector<comm::Snapshot> snapshots;
  msg::FindRunFilesT find;
  find.run = run;
  for (const scheduler::Action& action :
       core_->handle(pool_.world.now() + 1, scheduler::Received{"nobody", find}))
    if (const auto* send = std::get_if<scheduler::Send>(&action))
      if (const auto* files = std::get_if<msg::RunFilesT>(&send->message))
        for (const auto& table : files->snapshots) snapshots.push_back(msg::snapshot_of(*table));
  return snapshots;
}

}  // namespace modelet::simulation
