// HistoryFeatures: what the entity of a record did before (columns of the types entity and time). A record with labels is
// an event of its entity: it has a time, its labels as items, and the values of the columns of numbers. A record is
// described by the events of its entity at earlier times. So no record sees itself, its future, or what happened at the
// same time, in whatever order the records come. Features:
//
//   the last items (last_items.h)
//   behind these                as ranges and standardised, after sign(x) ln(1 + |x|): the time since the last event; how
//                               many events there are, and the sum of each column of numbers, among all and in the last
//                               time of each window
//
// The state has the last kMostEvents events of each entity, for the records of other texts. One thread fits it; then any
// thread may use it.
//
//   history.kind U32 [2]                how many items there are; 0: times are numbers, 1: dates, 2: there were none
//   history.offsets U64, history.names U8   entities
//   history.counts U32 [entities]       events of each
//   history.times I64 [events]          the bits of 64-bit floats; dates in days since 1970
//   history.sizes U32 [events], history.events U32   how many items each has, and these
//   history.numbers F32 [events, columns of numbers]
//   history.edges.counts, history.edges, history.scales   NumberFeatures
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/encode/features/number_features.h"
#include "shard/data/encode/features/string_table.h"
#include "shard/data/read/cells.h"
#include "shard/format/safetensors.h"

namespace modelet::shard {

// Where a table has its histories: places among the wanted columns.
struct HistoryColumns {
  size_t entity = 0, time = 0;
  std::vector<size_t> numbers;
  std::vector<float> windows;  // in days, or in the unit of the times
};

struct HistoryEvent {
  std::string entity;
  double time = 0;
  std::vector<uint32_t> items;  // ascending
  std::vector<float> numbers;   // 0 for those that are missing
};

// The events of entities. Events that are equal in entity, time and items are one event, so that a text may be added to
// what is known of it already.
class EventLog {
 public:
  explicit EventLog(size_t numbers = 0) : numbers_of_event_(numbers) {}

  // The events of one entity, whose number in it is kOnly; none for StringTable::kNone. Needs sorted events; to be sorted
  // again.
  static constexpr uint32_t kOnly = 0;
  EventLog only(uint32_t entity) const;

  StringTable& entities() { return entities_; }
  const StringTable& entities() const { return entities_; }

  // items: ascending. numbers: 0 for those that are missing.
  void add(uint32_t entity, double time, std::span<const uint32_t> items, std::span<const float> numbers);
  // Puts what was added in order. Items become new_ids[item]; those that become StringTable::kNone are left out.
  void renumber(std::span<const uint32_t> new_ids);
  void sort();
  void keep_last(size_t most);  // events of each entity; then sort()

  // The rest needs sorted events.
  struct Range {
    size_t first = 0, last = 0;
  };
  size_t size() const { return events_.size(); }
  Range of(uint32_t entity) const;
  Range before(uint32_t entity, double time) const;                 // this time and later ones left out
  size_t first_after(Range range, double time) const;               // in the range: the first event after the time
  double time(size_t event) const { return events_[event].time; }
  std::span<const uint32_t> items(size_t event) const {
    return std::span(items_).subspan(events_[event].first_item, events_[event].items);
  }
  std::span<const float> numbers(size_t event) const {
    return std::span(numbers_).subspan(events_[event].place * numbers_of_event_, numbers_of_event_);
  }
  double sum(Range range, size_t number) const;

 private:
  struct Event {
    uint32_t entity, items;
    double time;
    size_t first_item, place;
  };
  bool less(const Event& a, const Event& b) const;

  StringTable entities_;
  size_t numbers_of_event_;
  std::vector<Event> events_;
  std::vector<uint32_t> items_;
  std::vector<float> numbers_;
  // [events, numbers] of the entity's events up to this one. They begin anew with each entity, so that a sum has the same
  // bits whoever else is in the log.
  std::vector<double> sums_;
};

class HistoryFeatures {
 public:
  static constexpr size_t kMostEvents = 1000;

  HistoryFeatures(HistoryColumns columns, const Experiment::Sessions& options, uint32_t bins);

  // When a record is, and whose. Nothing of a record counts if it lacks one of them.
  struct Moment {
    uint32_t entity = StringTable::kNone;
    double time = 0;
  };

  // Fitting: each record of the training text with its labels, ascending and numbered anyhow; and then the end, with the
  // number that each label has from now on.
  void count(const CellReader& cells, std::span<const uint32_t> labels);
  void finish(std::span<const uint32_t> new_ids, uint32_t items);

  void add_tensors(std::vector<Tensor>& tensors) const;
  void restore(const SafetensorsFile& state);

  // The rest needs a fitted or restored object.
  uint32_t features() const { return features_; }
  const EventLog& known() const { return known_; }
  EventLog empty_log() const { return EventLog(columns_.numbers.size()); }

  const HistoryColumns& columns() const { return columns_; }

  // A record as an event. Its error says what it lacks if it is none, except for labels.
  HistoryEvent event_of(const CellReader& cells, std::span<const uint32_t> labels) const;
  // Adds a record to a log, which is to be sorted afterwards.
  Moment add(const CellReader& cells, std::span<const uint32_t> labels, EventLog& log) const;
  // The moment of a question to a log; without a time it is after all events.
  Moment find(const CellReader& cells, const EventLog& log) const;
  Moment find(const CellReader& cells, uint32_t entity) const;  // whose number is known
  // The features of a moment, numbered from 0.
  void append(const EventLog& log, const Moment& moment, FeatureList& features) const;

 private:
  enum class Times : uint8_t { kNumbers, kDates, kUnknown };

  void require_name(const CellReader& cells) const;
  std::vector<float> numbers_of(const CellReader& cells) const;
  // NaN if it is missing.
  double time_of(const CellReader& cells, Times& kind) const;
  void describe(const EventLog& log, const Moment& moment, std::vector<float>& numbers) const;
  void number_features();
  void fill_lists();

  HistoryColumns columns_;
  Experiment::Sessions options_;
  Times times_ = Times::kUnknown;
  uint32_t items_ = 0, features_ = 0;
  NumberFeatures numbers_;
  EventLog known_;
  std::vector<Moment> moments_;  // of the training records, while it is fitted
  // What add_tensors() points to.
  std::array<uint32_t, 2> kind_{};
  std::vector<uint32_t> counts_, sizes_, events_;
  std::vector<int64_t> event_times_;
  std::vector<float> event_numbers_;
};

}  // namespace modelet::shard
