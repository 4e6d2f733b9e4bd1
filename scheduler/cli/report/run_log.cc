#include "scheduler/cli/report/run_log.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/system/file.h"
#include "base/text/strict_json.h"

namespace modelet::cli {
namespace {

using nlohmann::json;

bool is_event(const json& event, std::string_view name) { return text_of(event, "event") == name; }

}  // namespace

std::vector<json> read_run_log(const std::filesystem::path& run) {
  const std::filesystem::path file = run / "log.jsonl";
  if (!std::filesystem::is_regular_file(file))
    throw UsageError(file.string() + ": no such file; name the folder of a run");
  constexpr size_t kMostBytes = size_t{256} << 20;
  const std::string text = read_text_file(file, kMostBytes);
  std::vector<json> events;
  size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    ++number;
    if (line.empty()) continue;
    auto event = parse_json_object(line);
    // A run that was killed may have left half a line.
    if (!event && rest.empty() && !text.ends_with('\n')) break;
    if (!event || text_of(*event, "event").empty())
      throw FormatError(
          fmt::format("{}:{}: no event of a run (docs/events.md): remove this line", file.string(), number));
    events.push_back(std::move(*event));
  }
  return events;
}

const json* last_event(const std::vector<json>& events, const char* name) {
  const auto found = std::find_if(events.rbegin(), events.rend(),
                                  [name](const json& event) { return is_event(event, name); });
  return found == events.rend() ? nullptr : &*found;
}

double figure_of(const json& event, const char* name) {
  const auto found = event.find(name);
  return found != event.end() && found->is_number() ? found->get<double>() : 0;
}

std::string text_of(const json& event, const char* name) {
  const auto found = event.find(name);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool has_finished(const std::vector<json>& events) {
  const json* const finished = last_event(events, "finished");
  const json* const started = last_event(events, "started");
  return finished != nullptr && started != nullptr && started < finished;  // both are in the same vector
}

std::vector<json> shortened(const std::vector<json>& events, size_t most) {
  const auto is_progress = [](const json& event) { return is_event(event, "progress"); };
  const auto progress = static_cast<size_t>(std::ranges::count_if(events, is_progress));
  const size_t each = std::max<size_t>(1, (progress + most - 1) / most);
  std::vector<json> kept;
  size_t number = 0;
  for (const json& event : events) {
    if (is_event(event, "preparing") || is_event(event, "sending") || is_event(event, "fetching") ||
        is_event(event, "evaluating"))
      continue;
    // The last one has the newest figures.
    if (is_progress(event) && (progress - ++number) % each != 0) continue;
    kept.push_back(event);
  }
  return kept;
}

}  // namespace modelet::cli
