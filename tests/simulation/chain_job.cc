#include "tests/simulation/chain_job.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace modelet::simulation {
namespace {

constexpr double kMissedAfter = 2, kLinger = 2, kDiskRetry = 1;  // seconds

}  // namespace

void ChainJob::later(double seconds, void (ChainJob::*what)()) {
  around_.host.post(seconds, [self = self(), what] {
    if (!self->is_over()) ((*self).*what)();
  });
}

// ---- before the first step

void ChainJob::prepare() {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < prepare_.owner.size(); ++i)
    if (has_modelet(i)) names.push_back(modelet_file(i));
  names.emplace_back(kRunFile);
  comm::Snapshot snapshot;
  if (prepare_.snapshot != nullptr) snapshot = msg::snapshot_of(*prepare_.snapshot);
  around_.snapshots.begin(prepare_, snapshot.step);
  const double seconds = around_.world.between(0.05, 0.5);
  around_.host.post(seconds, [self = self(), snapshot, names] {
    if (self->is_over()) return;
    if (self->prepare_.snapshot == nullptr) return self->brought(true, snapshot);
    self->around_.snapshots.bring(
        snapshot, names, [self] { return !self->is_over(); },
        [self, snapshot](bool good) { self->brought(good, snapshot); });
  });
}

void ChainJob::brought(bool good, const comm::Snapshot& snapshot) {
  if (!good) return end(msg::Outcome::Failed, "files of the snapshot cannot be had", true);
  const ChainState first = first_state(prepare_.name, prepare_.owner.size());
  const auto value = [&](const std::string& name, uint64_t at_first) {
    const auto file = std::ranges::find(snapshot.files, name, &comm::SnapshotFile::name);
    return file == snapshot.files.end() ? at_first : value_in(file->content);
  };
  step_ = snapshot.step;
  for (uint32_t i = 0; i < prepare_.owner.size(); ++i)
    if (has_modelet(i)) states_[i] = value(modelet_file(i), first.modelets[i]);
  run_state_ = value(kRunFile, first.run);
  // An owner that has come back, with what it had learned before.
  if (around_.mutant == Mutant::kOwnersBeginAnew && has_owners_ && prepare_.rank > 0 && prepare_.epoch > 1)
    run_state_ = first.run;
  if (around_.mutant == Mutant::kRoundsCountTwice && has_owners_ && prepare_.epoch > 1)
    if (const auto& own = workload_.memory(around_.node, prepare_.run); own.step > step_) run_state_ = own.of_run;
  report_prepared();
}

void ChainJob::start(const msg::StartT& start) {
  ranks_ = find_ranks(start);
  is_training_ = true;
  around_.host.post(0, [self = self()] { self->stop_if_waiting(); });
  later(0.01, &ChainJob::begin_step);
  later(1, &ChainJob::look_for_missing);
}

// ---- steps

void ChainJob::begin_step() {
  if (step_ == spec_.steps) return end_well(msg::Outcome::Ok);
  RankMessage own = message();
  own.step = step_;
  own.stop = stop_asked_;
  if (has_owners_ && takes_part()) own.total = contribution_of_owner(around_.node, run_state_);
  for (const auto& [modelet, state] : states_)
    if (!has_owners_) own.total += contribution(modelet, state);
  messages_[step_][prepare_.rank] = own;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (rank == prepare_.rank || ranks_[rank] == nullptr) continue;
    around_.network.carry(
        around_.host, ranks_[rank]->host(),
        [self = self()] { return !self->over_ || self->around_.world.now() < self->linger_until_; },
        [to = ranks_[rank], own] { return to->received(own); });
  }
  waits_since_ = around_.world.now();
  is_computed_ = false;
  around_.host.post(spec_.step_seconds * around_.world.between(0.8, 1.2), [self = self(), at = step_] {
    if (self->is_over() || self->step_ != at) return;
    self->is_computed_ = true;
    self->complete_if_all_here();
  });
}

// The others send that they have nothing to add, and go on from the sum.
bool ChainJob::takes_part() const {
  const bool apart = around_.mutant == Mutant::kOwnersDrawApart && prepare_.epoch > 1;
  return participants(prepare_.name, step_, apart ? workload_.began_with(prepare_.run) : ranks_.size(), owners_per_round_)[prepare_.rank] != 0;
}

bool ChainJob::received(const RankMessage& message) {
  const bool is_taken =
      is_of_group(message) || (around_.mutant == Mutant::kNoFencingOfRanks && message.run == prepare_.run &&
                               message.rank != prepare_.rank && message.rank < prepare_.node_names.size());
  if (!is_taken) return is_dropped(message);
  if (missed_.erase(message.rank) > 0 && !over_) report_missed(message.rank, true, "");
  if (message.step < step_) return true;
  auto& of_step = messages_[message.step];
  const auto [known, is_new] = of_step.insert({message.rank, message});
  if (!is_new && around_.mutant == Mutant::kDuplicatesInSteps) known->second.total += message.total;
  complete_if_all_here();
  return true;
}

void ChainJob::complete_if_all_here() {
  if (over_ || !is_training_ || !is_computed_ || messages_[step_].size() < ranks_.size()) return;
  uint64_t total = 0;
  bool stops = false;
  for (const auto& [rank, message] : messages_[step_]) {
    total += message.total;
    stops = stops || message.stop;
  }
  for (auto& [modelet, state] : states_) state = next_modelet_state(state, total);
  run_state_ = next_run_state(run_state_, total);
  messages_.erase(step_++);
  is_computed_ = false;
  around_.world.note("{} run {} epoch {} rank {}: step {}", around_.endpoint, prepare_.run, prepare_.epoch,
                     prepare_.rank, step_);
  around_.promises.stepped(prepare_.run);
  workload_.stepped(prepare_, step_, states_, run_state_);
  workload_.memory(around_.node, prepare_.run) = {step_, run_state_};
  if (step_ == spec_.steps) return end_well(msg::Outcome::Ok);
  if (stops) return end_well(msg::Outcome::Interrupted);
  if (step_ % spec_.snapshot_every == 0) {
    write_snapshot(false);
    if (prepare_.rank == 0) publish();
  }
  begin_step();
}

void ChainJob::publish() {
  nlohmann::json event = {{"event", "progress"},
                          {"step", step_},
                          {"eta_seconds", static_cast<double>(spec_.steps - step_) * spec_.step_seconds},
                          {"group", prepare_.epoch},
                          {"state", run_state_}};
  // The scheduler takes owners back when it hears how the group gets on.
  for (size_t rank = 0; has_owners_ && rank < ranks_.size(); ++rank)
    event["nodes"].push_back({{"compute_seconds", spec_.step_seconds}, {"codec_seconds", 0}, {"wait_seconds", 0}});
  report_event(event);
}

void ChainJob::look_for_missing() {
  const double now = around_.world.now();
  const bool is_late = is_computed_ && now - waits_since_ > kMissedAfter + spec_.step_seconds;
  for (uint32_t rank = 0; is_late && rank < ranks_.size(); ++rank) {
    if (messages_[step_].contains(rank)) continue;
    missed_.insert(rank);
    report_missed(rank, false, "it is silent");
  }
  later(kMissedAfter, &ChainJob::look_for_missing);
}

bool ChainJob::write_snapshot(bool keep) {
  std::vector<comm::SnapshotFile> files;
  for (const auto& [modelet, state] : states_)  // of which each owner writes a part
    if (!has_owners_ || modelet % prepare_.size == prepare_.rank)
      files.push_back({modelet_file(modelet), content_of(step_, modelet, state), 8, {}});
  if (prepare_.rank == 0) files.push_back({kRunFile, content_of(step_, kRunFileNumber, run_state_), 8, {}});
  for (const comm::SnapshotFile& file : files)
    if (!around_.disk.write(prepare_.run, file.content)) return false;
  around_.snapshots.take(step_, keep, files);
  return true;
}

// ---- the end

// Waits while the disk is full.
void ChainJob::end_well(msg::Outcome outcome) {
  if (!write_snapshot(true))
    return around_.host.post(kDiskRetry, [self = self(), outcome] {
      if (!self->is_over()) self->end_well(outcome);
    });
  if (prepare_.rank == 0) publish();
  end(outcome, "", false);
}

void ChainJob::end(msg::Outcome outcome, const std::string& why, bool retry) {
  over_ = true;
  linger_until_ = around_.world.now() + kLinger;
  msg::RunDoneT done;
  done.run = prepare_.run;
  done.epoch = prepare_.epoch;
  done.outcome = outcome;
  done.step = step_;
  done.message = why;
  done.retry = retry;
  around_.report(std::move(done));
}

// Once the group runs, a stop ends all ranks after the same step. Before that, this rank can end alone.
void ChainJob::stop_if_waiting() {
  if (!stop_asked_ || is_training_ || over_) return;
  end(msg::Outcome::Failed, "stopped before the first step", false);
}

void ChainJob::abort(const std::string& reason) {
  const double seconds =
      around_.world.chance(0.1) ? around_.world.between(1, 4) : around_.world.between(0, 0.1);
  is_training_ = false;  // it makes no more steps
  around_.host.post(seconds, [self = self(), reason] {
    if (!self->is_over()) self->end(msg::Outcome::Failed, reason, true);
  });
}

}  // namespace modelet::simulation
