#include "scheduler/client/chrome_trace.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/system/file.h"
#include "base/text/strict_json.h"

namespace modelet::cli {
namespace {

using nlohmann::json;

constexpr double kMicrosecondsOfSecond = 1e6;
constexpr const char* kTraceEvent = "an event 'trace'";
constexpr uint64_t kMostRanks = 4096, kMostParts = 256;
constexpr const char* kWaitsFor = "collect";  // the phase in which a rank hears the others

int64_t whole_at(const json& span, size_t place) {
  if (!span.is_array() || span.size() <= place || !span[place].is_number_integer())
    throw FormatError(std::string(kTraceEvent) + ": a span is a list of whole numbers");
  return span[place].get<int64_t>();
}

}  // namespace

void ChromeTrace::add(const json& event) {
  if (event.value("event", "") != "trace") return;
  const uint64_t number = unsigned_at(event, "rank", kTraceEvent),
                 size = unsigned_at(event, "ranks", kTraceEvent);
  const uint64_t part = unsigned_at(event, "part", kTraceEvent),
                 parts = unsigned_at(event, "parts", kTraceEvent);
  if (size > kMostRanks || number >= size || parts > kMostParts || part >= parts)
    throw FormatError(std::string(kTraceEvent) + ": there is no such rank or part");
  size_ = size;
  Rank& rank = ranks_[number];
  rank.node = string_at(event, "node", kTraceEvent);
  rank.began = number_at(event, "began", kTraceEvent);
  rank.parts = parts;
  rank.phases.clear();
  for (const json& phase : member_at(event, "phases", kTraceEvent))
    rank.phases.push_back(phase.get<std::string>());
  std::vector<Span>& spans = rank.by_part[part];
  spans.clear();
  for (const json& span : member_at(event, "spans", kTraceEvent)) {
    spans.push_back({.step = static_cast<uint64_t>(whole_at(span, 0)),
                     .phase = static_cast<size_t>(whole_at(span, 1)),
                     .began = whole_at(span, 2),
                     .length = whole_at(span, 3),
                     .wait = whole_at(span, 4),
                     .codec = whole_at(span, 5)});
    if (spans.back().phase >= rank.phases.size())
      throw FormatError(std::string(kTraceEvent) + ": there is no such phase");
  }
}

bool ChromeTrace::is_complete() const {
  return size_ > 0 && ranks_.size() == size_ && std::ranges::all_of(ranks_, [](const auto& entry) {
           return entry.second.by_part.size() == entry.second.parts;
         });
}

int64_t ChromeTrace::zero() const {
  double first = std::numeric_limits<double>::infinity();
  for (const auto& [number, rank] : ranks_) first = std::min(first, rank.began);
  return std::llround(first * kMicrosecondsOfSecond);
}

// In order. An agent rounds beginning and length of a span each by itself, and Perfetto leaves out what overlaps by a
// microsecond.
std::vector<ChromeTrace::Span> ChromeTrace::spans_of(const Rank& rank) {
  std::vector<Span> all;
  for (const auto& [part, spans] : rank.by_part) all.insert(all.end(), spans.begin(), spans.end());
  for (size_t i = 0; i + 1 < all.size(); ++i)
    all[i].length = std::clamp<int64_t>(all[i + 1].began - all[i].began, 0, std::max<int64_t>(0, all[i].length));
  return all;
}

std::map<uint64_t, ChromeTrace::Step> ChromeTrace::steps_of(const Rank& rank, int64_t zero) {
  std::map<uint64_t, Step> steps;
  const int64_t begin = std::llround(rank.began * kMicrosecondsOfSecond) - zero;
  for (const Span& span : spans_of(rank)) {
    const bool is_new = !steps.contains(span.step);
    Step& step = steps[span.step];
    if (is_new) step.began = begin + span.began;
    step.ended = begin + span.began + span.length;
    if (rank.phases[span.phase] != kWaitsFor) continue;
    step.exchanges = true;
    step.sent = begin + span.began;
    step.heard = step.ended;
  }
  return steps;
}

// Of two ranks, each hears the other only after the other has sent. So the shift of a clock has a lower and an upper
// bound from each step, and where several fit, the least is taken.
std::map<uint64_t, int64_t> ChromeTrace::shifts(int64_t zero) const {
  std::map<uint64_t, int64_t> found;
  const auto reference = steps_of(ranks_.begin()->second, zero);
  for (const auto& [number, rank] : ranks_) {
    const auto own = steps_of(rank, zero);
    int64_t least = std::numeric_limits<int64_t>::min() / 2, most = std::numeric_limits<int64_t>::max() / 2;
    for (const auto& [step, theirs] : reference) {
      const auto mine = own.find(step);
      if (mine == own.end() || !theirs.exchanges || !mine->second.exchanges) continue;
      least = std::max(least, theirs.sent - mine->second.heard);
      most = std::min(most, theirs.heard - mine->second.sent);
    }
    // Clocks also drift while the steps are traced.
    found[number] = least <= most ? std::clamp<int64_t>(0, least, most) : least + (most - least) / 2;
  }
  return found;
}

size_t ChromeTrace::steps() const {
  std::map<uint64_t, size_t> count;
  for (const auto& [number, rank] : ranks_)
    for (const auto& [step, times] : steps_of(rank, 0)) ++count[step];
  return static_cast<size_t>(
      std::ranges::count_if(count, [this](const auto& entry) { return entry.second == ranks_.size(); }));
}

double ChromeTrace::step_seconds() const {
  std::map<uint64_t, int64_t> longest;
  for (const auto& [number, rank] : ranks_)
    for (const auto& [step, times] : steps_of(rank, 0))
      longest[step] = std::max(longest[step], times.ended - times.began);
  double sum = 0;
  for (const auto& [step, length] : longest) sum += static_cast<double>(length);
  return longest.empty() ? 0 : sum / static_cast<double>(longest.size()) / kMicrosecondsOfSecond;
}

std::string ChromeTrace::text() const {
  const int64_t start = zero();
  const auto moved = shifts(start);
  // A clock that is moved back begins before the others. Readers drop what lies before zero.
  int64_t first = 0;
  for (const auto& [number, rank] : ranks_)
    for (const auto& [step, times] : steps_of(rank, start)) first = std::min(first, times.began + moved.at(number));
  json events = json::array();
  for (const auto& [rank_number, rank] : ranks_) {
    const auto number = rank_number;  // of which lambdas may take a reference
    const int64_t shift = moved.at(number);
    const auto base = [&](const char* kind, const std::string& name) {
      return json{{"ph", kind}, {"name", name}, {"pid", 0}, {"tid", number}};
    };
    json named = base("M", "thread_name");
    named["args"] = {{"name", fmt::format("rank {} on {}", number, rank.node)}};
    events.push_back(std::move(named));
    const auto slice = [&](const std::string& name, int64_t began, int64_t length) {
      json event = base("X", name);
      event["ts"] = began + shift - first;
      event["dur"] = length;
      return event;
    };
    for (const auto& [step, times] : steps_of(rank, start))
      events.push_back(slice(fmt::format("step {}", step), times.began, times.ended - times.began));
    const int64_t begin = std::llround(rank.began * kMicrosecondsOfSecond) - start;
    for (const Span& span : spans_of(rank)) {
      json event = slice(rank.phases[span.phase], begin + span.began, span.length);
      event["args"] = {{"step", span.step}, {"wait_us", span.wait}, {"codec_us", span.codec}};
      events.push_back(std::move(event));
    }
  }
  json clocks = json::object();
  for (const auto& [number, shift] : moved) clocks[std::to_string(number)] = shift;
  const json file = {{"displayTimeUnit", "ms"},
                     {"otherData", {{"clocks_moved_us", clocks}, {"program", "modelet"}}},
                     {"traceEvents", std::move(events)}};
  return file.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

void ChromeTrace::write(const std::filesystem::path& file) const {
  AtomicFile out(file);
  out.write(text());
  out.commit(Sync::kNo);
}

std::string trace_note(const ChromeTrace& trace, const std::filesystem::path& file) {
  return fmt::format(
      "{}: {} steps of {} ranks, {:.2f} ms each; open it at https://ui.perfetto.dev or chrome://tracing",
      file.string(), trace.steps(), trace.ranks_heard(), 1e3 * trace.step_seconds());
}

}  // namespace modelet::cli
