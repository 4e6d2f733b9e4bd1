#include "shard/data/encode/features/history_features.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/text/parse_double.h"
#include "base/text/value_name.h"
#include "shard/data/encode/features/label_names.h"
#include "shard/data/encode/features/last_items.h"
#include "shard/data/read/date.h"
#include "shard/data/read/sample_reader.h"

namespace modelet::shard {
namespace {

constexpr double kAfterAll = std::numeric_limits<double>::infinity();

// The ranges of each number, and its size.
std::vector<NumberKind> history_kinds(const HistoryColumns& columns) {
  const size_t numbers = 1 + (1 + columns.numbers.size()) * (1 + columns.windows.size());
  std::vector<NumberKind> kinds;
  for (size_t i = 0; i < numbers; ++i) kinds.insert(kinds.end(), {NumberKind::kBins, NumberKind::kLogarithm});
  return kinds;
}

void require_undamaged(bool fine, const SafetensorsFile& state, const char* what) {
  if (!fine) throw FormatError(state.path().string() + ": damaged: its histories have " + what);
}

}  // namespace

void EventLog::add(uint32_t entity, double time, std::span<const uint32_t> items, std::span<const float> numbers) {
  events_.push_back({entity, static_cast<uint32_t>(items.size()), time, items_.size(), events_.size()});
  items_.insert(items_.end(), items.begin(), items.end());
  numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
}

bool EventLog::less(const Event& a, const Event& b) const {
  if (a.entity != b.entity) return a.entity < b.entity;
  if (a.time != b.time) return a.time < b.time;
  const std::span all(items_);
  return std::ranges::lexicographical_compare(all.subspan(a.first_item, a.items), all.subspan(b.first_item, b.items));
}

void EventLog::renumber(std::span<const uint32_t> new_ids) {
  for (Event& event : events_) {
    const auto first = items_.begin() + static_cast<ptrdiff_t>(event.first_item), end = first + event.items;
    std::transform(first, end, first, [&](uint32_t item) { return new_ids[item]; });
    std::sort(first, end);  // kNone comes last
    event.items = static_cast<uint32_t>(std::lower_bound(first, end, StringTable::kNone) - first);
  }
}

void EventLog::sort() {
  std::ranges::stable_sort(events_, [&](const Event& a, const Event& b) { return less(a, b); });
  const auto equal = [&](const Event& a, const Event& b) { return !less(a, b); };
  events_.erase(std::unique(events_.begin(), events_.end(), equal), events_.end());
  sums_.resize(events_.size() * numbers_of_event_);
  for (size_t event = 0; event < events_.size(); ++event) {
    const bool goes_on = event > 0 && events_[event - 1].entity == events_[event].entity;
    for (size_t n = 0; n < numbers_of_event_; ++n) {
      const size_t at = event * numbers_of_event_ + n;
      sums_[at] = (goes_on ? sums_[at - numbers_of_event_] : 0) + double{numbers(event)[n]};
    }
  }
}

void EventLog::keep_last(size_t most) {
  EventLog kept(numbers_of_event_);
  for (size_t first = 0, end = 0; first < events_.size(); first = end) {
    while (end < events_.size() && events_[end].entity == events_[first].entity) ++end;
    for (size_t event = std::max(first, end - std::min(end, most)); event < end; ++event)
      kept.add(events_[event].entity, time(event), items(event), numbers(event));
  }
  kept.entities_ = std::move(entities_);
  *this = std::move(kept);
  sort();
}

EventLog EventLog::only(uint32_t entity) const {
  EventLog log(numbers_of_event_);
  const Range range = of(entity);
  for (size_t event = range.first; event < range.last; ++event)
    log.add(kOnly, time(event), items(event), numbers(event));
  return log;
}

EventLog::Range EventLog::of(uint32_t entity) const {
  const auto first = std::ranges::lower_bound(events_, entity, {}, &Event::entity);
  const auto last = std::ranges::upper_bound(events_, entity, {}, &Event::entity);
  return {static_cast<size_t>(first - events_.begin()), static_cast<size_t>(last - events_.begin())};
}

EventLog::Range EventLog::before(uint32_t entity, double time) const {
  const Range all = of(entity);
  const std::span events = std::span(events_).subspan(all.first, all.last - all.first);
  const auto end = std::ranges::lower_bound(events, time, {}, &Event::time);
  return {all.first, all.first + static_cast<size_t>(end - events.begin())};
}

size_t EventLog::first_after(Range range, double time) const {
  const std::span events = std::span(events_).subspan(range.first, range.last - range.first);
  return range.first + static_cast<size_t>(std::ranges::upper_bound(events, time, {}, &Event::time) - events.begin());
}

double EventLog::sum(Range range, size_t number) const {
  if (range.first == range.last) return 0;
  const double all = sums_[(range.last - 1) * numbers_of_event_ + number];
  const bool goes_on = range.first > 0 && events_[range.first - 1].entity == events_[range.first].entity;
  return goes_on ? all - sums_[(range.first - 1) * numbers_of_event_ + number] : all;
}

HistoryFeatures::HistoryFeatures(HistoryColumns columns, const Experiment::Sessions& options, uint32_t bins)
    : columns_(std::move(columns)), options_(options), numbers_(history_kinds(columns_), bins), known_(empty_log()) {}

double HistoryFeatures::time_of(const CellReader& cells, Times& kind) const {
  const std::string_view text = cells.cell(columns_.time);
  if (is_missing_number(text) || text == "NaT") return std::numeric_limits<double>::quiet_NaN();
  const auto date = parse_date(text);
  double number = 0;
  if (!date) {
    const char* const end = text.data() + text.size();
    const auto [rest, error] = parse_double(text.data(), end, number);
    if (error != std::errc{} || rest != end || !std::isfinite(number))
      cells.fail(columns_.time,
                 "expected a time, which is a number or a date such as 2026-11-30T09:41, or nothing if it is missing, "
                 "found " + quoted(text));
  }
  const Times found = date ? Times::kDates : Times::kNumbers;
  if (kind == Times::kUnknown) kind = found;
  if (kind != found)
    cells.fail(columns_.time, std::string("the times before are ") + (date ? "numbers" : "dates") + ", found " + quoted(text));
  return date ? date->days : number;
}

HistoryFeatures::Moment HistoryFeatures::add(const CellReader& cells, std::span<const uint32_t> labels,
                                             EventLog& log) const {
  Times kind = times_;
  const std::string_view name = cells.cell(columns_.entity);
  const double time = time_of(cells, kind);
  if (name.empty() || std::isnan(time)) return {};
  const Moment moment{log.entities().insert(name), time};
  if (!labels.empty()) log.add(moment.entity, time, labels, numbers_of(cells));
  return moment;
}

std::vector<float> HistoryFeatures::numbers_of(const CellReader& cells) const {
  std::vector<float> numbers;
  for (const size_t column : columns_.numbers) {
    const float value = cells.number(column);
    numbers.push_back(std::isnan(value) ? 0 : value);
  }
  return numbers;
}

HistoryEvent HistoryFeatures::event_of(const CellReader& cells, std::span<const uint32_t> labels) const {
  Times kind = times_;
  const std::string_view name = cells.cell(columns_.entity);
  if (name.empty()) cells.fail(columns_.entity, "is missing: an event has an entity");
  require_name(cells);
  const double time = time_of(cells, kind);
  if (std::isnan(time)) cells.fail(columns_.time, "is missing: an event has a time");
  return {std::string(name), time, {labels.begin(), labels.end()}, numbers_of(cells)};
}

void HistoryFeatures::require_name(const CellReader& cells) const {
  if (cells.cell(columns_.entity).size() > LabelNames::kMaxBytes)
    cells.fail(columns_.entity, "the name of an entity has more than " + std::to_string(LabelNames::kMaxBytes) +
                                    " bytes; is this the right column?");
}

HistoryFeatures::Moment HistoryFeatures::find(const CellReader& cells, const EventLog& log) const {
  return find(cells, log.entities().find(cells.cell(columns_.entity)));
}

HistoryFeatures::Moment HistoryFeatures::find(const CellReader& cells, uint32_t entity) const {
  Times kind = times_;
  const double time = time_of(cells, kind);
  return {entity, std::isnan(time) ? kAfterAll : time};
}

void HistoryFeatures::count(const CellReader& cells, std::span<const uint32_t> labels) {
  time_of(cells, times_);
  require_name(cells);
  moments_.push_back(add(cells, labels, known_));
}

void HistoryFeatures::finish(std::span<const uint32_t> new_ids, uint32_t items) {
  items_ = items;
  known_.renumber(new_ids);
  known_.sort();
  std::vector<float> numbers;
  for (const Moment& moment : moments_) {
    describe(known_, moment, numbers);
    numbers_.count(numbers);
  }
  numbers_.finish();
  moments_ = {};
  known_.keep_last(kMostEvents);
  number_features();
  fill_lists();
}

void HistoryFeatures::number_features() {
  const uint64_t of_items = LastItems::features(options_, items_);
  if (of_items >= kMaxCount)
    throw UsageError("[columns]: histories of " + std::to_string(items_) + " items at " +
                     std::to_string(options_.positions) + " places are more than 2^31 features; lower sessions.positions");
  features_ = numbers_.number_from(static_cast<uint32_t>(of_items));
}

// As history_kinds().
void HistoryFeatures::describe(const EventLog& log, const Moment& moment, std::vector<float>& numbers) const {
  numbers.clear();
  const auto add = [&](double value) {
    constexpr double kMost = std::numeric_limits<float>::max();
    numbers.insert(numbers.end(), 2, static_cast<float>(std::clamp(value, -kMost, kMost)));
  };
  const EventLog::Range before = log.before(moment.entity, moment.time);
  const bool any = before.last > before.first;
  const bool when = std::isfinite(moment.time);
  add(any && when ? moment.time - log.time(before.last - 1) : std::numeric_limits<double>::quiet_NaN());
  const auto add_range = [&](EventLog::Range range) {
    add(static_cast<double>(range.last - range.first));
    for (size_t n = 0; n < columns_.numbers.size(); ++n) add(log.sum(range, n));
  };
  add_range(before);
  for (const float window : columns_.windows)
    add_range({when ? log.first_after(before, moment.time - double{window}) : before.first, before.last});
}

void HistoryFeatures::append(const EventLog& log, const Moment& moment, FeatureList& features) const {
  const EventLog::Range before = log.before(moment.entity, moment.time);
  LastItems last_items(options_, items_);
  std::vector<uint32_t> last;
  for (size_t event = before.last; event > before.first && last.size() < last_items.most(); --event)
    for (const uint32_t item : log.items(event - 1))
      if (item < items_ && last.size() < last_items.most()) last.push_back(item);
  std::ranges::reverse(last);
  last_items.append(last, features);
  std::vector<float> numbers;
  describe(log, moment, numbers);
  numbers_.append(numbers, features);
}

void HistoryFeatures::fill_lists() {
  counts_.assign(known_.entities().size(), 0);
  sizes_.clear();
  events_.clear();
  event_times_.clear();
  event_numbers_.clear();
  for (uint32_t entity = 0; entity < counts_.size(); ++entity) {
    const EventLog::Range range = known_.of(entity);
    counts_[entity] = static_cast<uint32_t>(range.last - range.first);
    for (size_t event = range.first; event < range.last; ++event) {
      const std::span<const uint32_t> items = known_.items(event);
      sizes_.push_back(static_cast<uint32_t>(items.size()));
      events_.insert(events_.end(), items.begin(), items.end());
      event_times_.push_back(std::bit_cast<int64_t>(known_.time(event)));
      const std::span<const float> numbers = known_.numbers(event);
      event_numbers_.insert(event_numbers_.end(), numbers.begin(), numbers.end());
    }
  }
  kind_ = {items_, static_cast<uint32_t>(times_)};
}

void HistoryFeatures::add_tensors(std::vector<Tensor>& tensors) const {
  const StringTable& names = known_.entities();
  const std::span<const uint8_t> letters(reinterpret_cast<const uint8_t*>(names.strings().data()), names.bytes());
  tensors.push_back(tensor("history.kind", {kind_.size()}, kind_));
  tensors.push_back(tensor("history.offsets", {names.offsets().size()}, names.offsets()));
  tensors.push_back(tensor("history.names", {letters.size()}, letters));
  tensors.push_back(tensor("history.counts", {counts_.size()}, counts_));
  tensors.push_back(tensor("history.times", {event_times_.size()}, event_times_));
  tensors.push_back(tensor("history.sizes", {sizes_.size()}, sizes_));
  tensors.push_back(tensor("history.events", {events_.size()}, events_));
  tensors.push_back(tensor("history.numbers", {event_numbers_.size()}, event_numbers_));
  numbers_.add_tensors("history.", tensors);
}

void HistoryFeatures::restore(const SafetensorsFile& state) {
  const auto kind = state.values<uint32_t>("history.kind", {kind_.size()});
  require_undamaged(kind[1] <= static_cast<uint32_t>(Times::kUnknown), state, "times of an unknown kind");
  items_ = kind[0];
  times_ = static_cast<Times>(kind[1]);
  const auto letters = list_in<uint8_t>(state, "history.names");
  known_ = empty_log();
  known_.entities() = StringTable(
      list_in<uint64_t>(state, "history.offsets"),
      std::string_view(reinterpret_cast<const char*>(letters.data()), letters.size()), state.path().string());
  const auto counts = list_in<uint32_t>(state, "history.counts"), sizes = list_in<uint32_t>(state, "history.sizes");
  auto items = list_in<uint32_t>(state, "history.events");
  const auto times = list_in<int64_t>(state, "history.times");
  auto numbers = list_in<float>(state, "history.numbers");
  require_undamaged(counts.size() == known_.entities().size() && times.size() == sizes.size() &&
                        numbers.size() == sizes.size() * columns_.numbers.size(),
                    state, "lists that do not belong together");
  size_t event = 0;
  for (uint32_t entity = 0; entity < counts.size(); ++entity)
    for (uint32_t i = 0; i < counts[entity]; ++i, ++event) {
      require_undamaged(event < sizes.size() && sizes[event] <= items.size(), state, "fewer events than they count");
      const auto of_event = items.first(sizes[event]);
      const auto time = std::bit_cast<double>(times[event]);
      require_undamaged(std::isfinite(time), state, "times that are no numbers");
      require_undamaged(std::ranges::adjacent_find(of_event, std::greater_equal{}) == of_event.end(), state,
                        "items out of order");
      known_.add(entity, time, of_event, numbers.first(columns_.numbers.size()));
      items = items.subspan(sizes[event]);
      numbers = numbers.subspan(columns_.numbers.size());
    }
  require_undamaged(event == sizes.size() && items.empty(), state, "more events than they count");
  known_.sort();
  numbers_.restore(state, "history.");
  number_features();
  fill_lists();
}

}  // namespace modelet::shard
