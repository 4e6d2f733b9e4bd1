#include "scheduler/core/values/text.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/text/printable.h"
#include "base/text/strict_json.h"
#include "comm/transport/endpoint.h"

namespace modelet::scheduler {
namespace {

using nlohmann::json;

constexpr size_t kLongestName = 64;          // characters
constexpr size_t kLongestText = 4096;        // bytes of a text that is kept
constexpr size_t kLongestEvent = 64 * 1024;  // bytes; of JSON both as it comes and as it is kept

// Leaves out members whose key is no name, and makes texts as kept_text(). The parser has limited the depth.
void clean(json& value) {
  if (value.is_string()) value = kept_text(value.get_ref<const std::string&>());
  if (value.is_object())
    std::erase_if(value.get_ref<json::object_t&>(),
                  [](const auto& member) { return !is_name(member.first); });
  if (value.is_structured())
    for (json& inside : value) clean(inside);
}

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

bool is_address(const std::string& endpoint) {
  if (endpoint.size() > kLongestAddress || kept_text(endpoint) != endpoint) return false;
  try {
    comm::check_endpoint(endpoint, false);
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

std::optional<std::string> kept_event(const std::string& text) {
  if (text.size() > kLongestEvent) return std::nullopt;
  std::optional<json> event = parse_json_object(text);
  if (!event) return std::nullopt;
  clean(*event);
  std::string kept = event->dump();  // escaping makes a text up to five times as long
  return kept.size() <= kLongestEvent ? std::optional(std::move(kept)) : std::nullopt;
}

std::optional<std::string> kept_lines(const std::string& lines) {
  if (lines.size() > kLongestEvent) return std::nullopt;
  std::istringstream text(lines);
  std::string kept;
  for (std::string line; std::getline(text, line);) kept += kept_text(line) + '\n';
  return kept;
}

std::string with_key(const comm::Identity& sender) {
  return sender.name.empty() ? "" : fmt::format(" with key '{}'", printable(sender.name));
}

std::string nodes_text(size_t count) { return fmt::format("{} node{}", count, count == 1 ? "" : "s"); }

}  // namespace modelet::scheduler
