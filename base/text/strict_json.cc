#include "base/text/strict_json.h"

#include <set>
#include <vector>

#include "base/error.h"

namespace modelet {
namespace {

[[noreturn]] void bad_member(const char* key, const char* problem, std::string_view origin) {
  throw FormatError(std::string(origin) + ": '" + key + "' " + problem);
}

}  // namespace

nlohmann::json parse_strict_json(std::string_view text, std::string_view origin, int max_depth) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int depth, Event event, nlohmann::json& value) {
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= max_depth)
        throw FormatError(std::string(origin) + ": JSON nested deeper than " + std::to_string(max_depth));
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      throw FormatError(std::string(origin) + ": the key '" + value.get<std::string>() + "' appears twice");
    return true;
  };
  try {
    return nlohmann::json::parse(text, check);
  } catch (const nlohmann::json::exception& e) {
    constexpr size_t kShown = 200;  // the parser quotes the token it stopped at, however long
    throw FormatError(std::string(origin) + ": not valid JSON: " + std::string(e.what()).substr(0, kShown));
  }
}

const nlohmann::json& member_at(const nlohmann::json& object, const char* key, std::string_view origin) {
  if (!object.is_object()) bad_member(key, "is expected in an object, but there is none", origin);
  const auto it = object.find(key);
  if (it == object.end()) bad_member(key, "is missing", origin);
  return *it;
}

uint64_t unsigned_at(const nlohmann::json& object, const char* key, std::string_view origin) {
  const nlohmann::json& value = member_at(object, key, origin);
  if (!value.is_number_unsigned()) bad_member(key, "is not an unsigned whole number", origin);
  return value.get<uint64_t>();
}

double number_at(const nlohmann::json& object, const char* key, std::string_view origin) {
  const nlohmann::json& value = member_at(object, key, origin);
  if (!value.is_number()) bad_member(key, "is not a number", origin);
  return value.get<double>();
}

std::string string_at(const nlohmann::json& object, const char* key, std::string_view origin) {
  const nlohmann::json& value = member_at(object, key, origin);
  if (!value.is_string()) bad_member(key, "is not a string", origin);
  return value.get<std::string>();
}

}  // namespace modelet
