#include "shard/data/encode/features/live_events.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace modelet::shard {
namespace {

bool comes_before(const LiveEvent& a, const LiveEvent& b) {
  return std::tie(a.event.time, a.event.items) < std::tie(b.event.time, b.event.items);
}

bool has_event(const EventLog& log, EventLog::Range range, const HistoryEvent& event) {
  for (size_t i = range.first; i < range.last; ++i)
    if (log.time(i) == event.time && std::ranges::equal(log.items(i), event.items)) return true;
  return false;
}

}  // namespace

size_t LiveEvents::add(std::vector<LiveEvent> events) {
  const std::lock_guard lock(mutex_);
  size_t added = 0;
  std::set<std::string> changed;
  for (LiveEvent& event : events) {
    const std::string name = event.event.entity;
    auto found = entities_.find(name);
    if (found != entities_.end()) turns_.splice(turns_.end(), turns_, found->second.turn);
    if (is_known(found == entities_.end() ? nullptr : found->second.log.get(), event.event)) continue;
    if (found == entities_.end()) {
      found = entities_.try_emplace(name).first;
      found->second.turn = turns_.insert(turns_.end(), name);
    }
    std::vector<LiveEvent>& all = found->second.events;
    const auto place = std::ranges::lower_bound(all, event, comes_before);
    if (place != all.end() && !comes_before(event, *place)) continue;
    all.insert(place, std::move(event));
    changed.insert(name);
    ++added;
  }
  for (const std::string& name : changed) rebuild(name, entities_.at(name));
  forget();
  return added;
}

bool LiveEvents::knows(const HistoryEvent& event) const {
  const std::lock_guard lock(mutex_);
  const auto found = entities_.find(event.entity);
  return is_known(found == entities_.end() ? nullptr : found->second.log.get(), event);
}

bool LiveEvents::is_known(const EventLog* own, const HistoryEvent& event) const {
  if (own != nullptr) return has_event(*own, own->of(EventLog::kOnly), event);
  const uint32_t id = known_.entities().find(event.entity);
  return id != StringTable::kNone && has_event(known_, known_.of(id), event);
}

void LiveEvents::rebuild(const std::string& name, Entity& entity) {
  EventLog log = known_.only(known_.entities().find(name));
  for (const LiveEvent& each : entity.events)
    log.add(EventLog::kOnly, each.event.time, each.event.items, each.event.numbers);
  log.sort();
  if (log.size() > limits_.of_entity) {
    log.keep_last(limits_.of_entity);
    std::erase_if(entity.events, [&](const LiveEvent& each) { return each.event.time < log.time(0); });
  }
  together_ += log.size();
  if (entity.log) together_ -= entity.log->size();
  entity.log = std::make_shared<const EventLog>(std::move(log));
}

void LiveEvents::forget() {
  while (together_ > limits_.together && !turns_.empty()) {
    const auto oldest = entities_.find(turns_.front());
    together_ -= oldest->second.log->size();
    entities_.erase(oldest);
    turns_.pop_front();
  }
}

std::shared_ptr<const EventLog> LiveEvents::of(std::string_view entity) const {
  const std::lock_guard lock(mutex_);
  const auto found = entities_.find(std::string(entity));
  return found == entities_.end() ? nullptr : found->second.log;
}

void LiveEvents::add_to(EventLog& log) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, entity] : entities_) {
    const uint32_t id = log.entities().insert(name);
    for (const LiveEvent& each : entity.events) log.add(id, each.event.time, each.event.items, each.event.numbers);
  }
}

std::string LiveEvents::lines() const {
  const std::lock_guard lock(mutex_);
  std::string lines;
  for (const std::string& name : turns_)
    for (const LiveEvent& each : entities_.at(name).events) lines.append(each.line).push_back('\n');
  return lines;
}

size_t LiveEvents::size() const {
  const std::lock_guard lock(mutex_);
  size_t size = 0;
  for (const auto& [name, entity] : entities_) size += entity.events.size();
  return size;
}

}  // namespace modelet::shard
