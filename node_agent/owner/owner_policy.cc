#include "node_agent/owner/owner_policy.h"

#include <algorithm>
#include <cmath>

namespace modelet::agent {

OwnerPolicy::OwnerPolicy(const Preferences& preferences, uint32_t threads)
    : preferences_(preferences), threads_(threads), beside_others_(threads) {}

void OwnerPolicy::pause(double now, std::optional<double> seconds) {
  request_ = Request::kPause;
  pause_ends_.reset();
  if (seconds) pause_ends_ = now + *seconds;
}

void OwnerPolicy::drain() { request_ = Request::kDrain; }

void OwnerPolicy::resume() { request_ = Request::kWork; }

Allowance OwnerPolicy::decide(double now, int minute, const std::optional<HostSample>& sample) {
  if (request_ == Request::kPause && pause_ends_ && now >= *pause_ends_) request_ = Request::kWork;
  if (sample) {
    seen_.push_back({now, *sample});
    while (seen_.size() > 2 && seen_[1].at <= now - preferences_.back_off.return_seconds) seen_.pop_front();
    follow_load(now);
    follow_memory(now, sample->memory_pressure);
  }
  Allowance result{.threads = beside_others_, .reason = why_suspended(minute)};
  if (!result.reason.empty())
    result.threads = 0;
  else if (beside_others_ < threads_)
    result.reason = "others use the machine";
  if (result.threads > 0) {
    suspended_since_.reset();
    lost_patience_ = false;
    return result;
  }
  if (!suspended_since_) suspended_since_ = now;
  const bool lent = !preferences_.hours || preferences_.hours->contains(minute);
  if (now - *suspended_since_ >= patience()) lost_patience_ = true;
  result.leave = request_ == Request::kDrain || !lent || gives_memory_back_ || lost_patience_;
  return result;
}

double OwnerPolicy::patience() const {
  const double alone = preferences_.back_off.patience_seconds;
  return has_peers_ ? std::min(alone, kPatienceWithPeers) : alone;
}

// Why a run gets no thread now, whatever cores are free; empty: it may get some.
std::string OwnerPolicy::why_suspended(int minute) const {
  if (request_ == Request::kDrain) return "the owner wants the machine";
  if (request_ == Request::kPause) return "paused by the owner";
  if (preferences_.hours && !preferences_.hours->contains(minute)) return "not lent at this hour";
  if (gives_memory_back_) return "the machine is short of memory";
  return {};
}

void OwnerPolicy::follow_load(double now) {
  if (seen_.size() < 2) return;
  const BackOff& limits = preferences_.back_off;
  const HostSample &last = seen_.back().sample, &before = seen_[seen_.size() - 2].sample;
  const double others = std::min(last.others, before.others);
  uint32_t room = room_beside(others, last.cores);
  const bool waited = std::min(last.pressure, before.pressure) * 100 > limits.pressure_percent;
  const bool others_work = others * 100 > limits.tolerated_percent * last.cores;
  if (waited && others_work && room >= beside_others_) room = beside_others_ / 4;
  if (room < beside_others_) {
    beside_others_ = room;
    lowered_at_ = now;
    return;
  }
  if (now - lowered_at_ < limits.return_seconds || seen_.front().at > now - limits.return_seconds) return;
  double most = 0;
  for (const Seen& seen : seen_) most = std::max(most, seen.sample.others);
  beside_others_ = std::max(beside_others_, room_beside(most, last.cores));
}

void OwnerPolicy::follow_memory(double now, double pressure) {
  // A program that starts, or a file that is copied, may push out other pages for a moment.
  constexpr double kPatience = 5;  // seconds
  const BackOff& limits = preferences_.back_off;
  if (pressure * 100 > limits.memory_pressure_percent) {
    if (!memory_short_since_) memory_short_since_ = now;
    memory_short_at_ = now;
    if (now - *memory_short_since_ >= kPatience) gives_memory_back_ = true;
  } else {
    memory_short_since_.reset();
    if (now - memory_short_at_ >= limits.return_seconds) gives_memory_back_ = false;
  }
}

uint32_t OwnerPolicy::room_beside(double others, double cores) const {
  // Of a core: a program that uses one core takes 1.1, with the system's work for it.
  constexpr double kSlack = 0.25;
  if (others * 100 <= preferences_.back_off.tolerated_percent * cores) return threads_;
  return static_cast<uint32_t>(
      std::clamp(std::floor(cores - others + kSlack), 0.0, static_cast<double>(threads_)));
}

}  // namespace modelet::agent
