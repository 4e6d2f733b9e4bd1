#include "scheduler/core/values/text.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text/printable.h"

namespace modelet::scheduler {
namespace {

using nlohmann::json;

constexpr size_t kLongestName = 64;          // characters
constexpr size_t kLongestText = 4096;        // bytes of a text that is kept
constexpr size_t kLongestEvent = 64 * 1024;  // bytes of JSON
constexpr int kDeepestEvent = 8;             // objects and lists in one another; events have 3

}  // namespace

bool is_name(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), allowed);
}

bool is_measure(double value) { return std::isfinite(value) && value >= 0; }

std::string kept_text(const std::string& text) { return printable(text, kLongestText); }

std::optional<json> parse_event(const std::string& text) {
  if (text.size() > kLongestEvent) return std::nullopt;
  const auto clean = [](int depth, json::parse_event_t what, json& value) {
    if (what == json::parse_event_t::key) return is_name(value.get_ref<const std::string&>());
    if (what == json::parse_event_t::value && value.is_string())
      value = kept_text(value.get_ref<const std::string&>());
    return depth < kDeepestEvent;
  };
  json event = json::parse(text, clean, false);
  if (!event.is_object()) return std::nullopt;
  return event;
}

std::string text_of(const json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string with_key(const comm::Identity& sender) {
  return sender.name.empty() ? "" : fmt::format(" with key '{}'", printable(sender.name));
}

std::string nodes_text(size_t count) { return fmt::format("{} node{}", count, count == 1 ? "" : "s"); }

}  // namespace modelet::scheduler
