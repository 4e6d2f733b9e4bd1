// LiveEvents: what entities did after the training, for a model that is in use (columns of the types entity and time).
// Each entity that something is known of has a log of its own: the events of the training text, and the new ones. A
// record is described from this log as from the log of a file with all these events (history_features.h).
//
// Bounded: an entity keeps its last events, and if all together are too many, the new events of the entities that were
// told of longest ago are forgotten; of these the model then knows what the training text said.
//
// Any thread. A log that was handed out does not change; new events make a new one.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shard/data/encode/features/history_features.h"

namespace modelet::shard {

struct LiveLimits {
  size_t of_entity = HistoryFeatures::kMostEvents;
  size_t together = size_t{1} << 20;  // in the logs of all entities that were told of
};

// An event with what it was made of: a line of JSON.
struct LiveEvent {
  HistoryEvent event;
  std::string line;
};

class LiveEvents {
 public:
  // `known`: of the training text; must outlive this object.
  explicit LiveEvents(const EventLog& known, const LiveLimits& limits = {}) : known_(known), limits_(limits) {}

  // Returns how many of them were not known yet.
  size_t add(std::vector<LiveEvent> events);
  // Whether it would be one of them.
  bool knows(const HistoryEvent& event) const;
  // The log of an entity, whose number in it is EventLog::kOnly; null: nothing is known of it but the training text.
  std::shared_ptr<const EventLog> of(std::string_view entity) const;
  // Adds all new events to a log, which is to be sorted afterwards.
  void add_to(EventLog& log) const;
  // The lines of all new events, those of the entity that was told of longest ago first.
  std::string lines() const;
  size_t size() const;  // of lines()

 private:
  struct Entity {
    std::shared_ptr<const EventLog> log;
    std::vector<LiveEvent> events;
    std::list<std::string>::iterator turn;
  };
  bool is_known(const EventLog* own, const HistoryEvent& event) const;
  void rebuild(const std::string& name, Entity& entity);
  void forget();

  const EventLog& known_;
  const LiveLimits limits_;
  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<std::string, Entity> entities_;
  std::list<std::string> turns_;  // names of entities; the one that was told of longest ago first
  size_t together_ = 0;           // events in logs
};

}  // namespace modelet::shard
