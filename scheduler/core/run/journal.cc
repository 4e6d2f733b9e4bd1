#include "scheduler/core/run/journal.h"

#include <algorithm>
#include <utility>

#include "scheduler/core/run/pool.h"

namespace modelet::scheduler {
namespace {

uint64_t bytes_of(const RunEventRecord& event) {
  return sizeof event + event.time.size() + event.text.size();
}

}  // namespace

bool Journal::has(uint64_t agent, uint64_t number) const {
  const auto newest = newest_events_.find(agent);
  return number != 0 && newest != newest_events_.end() && number <= newest->second;
}

void Journal::add(Pool& pool, RunEventRecord event) {
  event.number = last_ + 1;
  pass_on(pool, event);
  pool.changes.events.push_back(event);
  restore(event);
}

void Journal::pass_on(Pool& pool, const RunEventRecord& event) const {
  for (const auto& [watcher, key] : watchers_) pool.send(watcher, message_of(event));
}

void Journal::restore(const RunEventRecord& event) {
  last_ = std::max(last_, event.number);
  if (uint64_t& newest = newest_events_[event.agent]; event.agent_number > newest)
    newest = event.agent_number;
  bytes_ += bytes_of(event);
  events_.push_back(event);
}

bool Journal::forget_oldest() {
  if (events_.size() <= 1) return false;
  bytes_ -= bytes_of(events_.front());
  events_.pop_front();
  return true;
}

void Journal::shorten(Pool& pool, uint64_t run) {
  is_short_ = true;
  pool.changes.shortened_logs.push_back(run);
  pool.changed_runs.insert(run);
}

// A watch counts for the key that watches, which may be an administrator's.
void Journal::add_watcher(Pool& pool, const std::string& peer, const std::string& key) {
  if (watchers_.emplace(peer, key).second) pool.accounts.change(key, {}, {.watches = 1});
}

void Journal::remove_watcher(Pool& pool, const std::string& peer) {
  if (const auto watcher = watchers_.extract(peer))
    pool.accounts.change(watcher.mapped(), {.watches = 1}, {});
}

void Journal::remove_watchers(Pool& pool) {
  while (!watchers_.empty()) remove_watcher(pool, std::string(watchers_.begin()->first));
}

void Journal::notify_watchers(Pool& pool, const comm::control::RunStatusT& status) const {
  for (const auto& [watcher, key] : watchers_) pool.send(watcher, status);
}

comm::control::RunEventT message_of(const RunEventRecord& event) {
  return {{}, event.run, event.text, 0, event.number};
}

}  // namespace modelet::scheduler
