#include "node_agent/owner/preferences.h"

#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/system/file.h"
#include "base/text/printable.h"
#include "base/text/suggest.h"
#include "base/text/toml.h"
#include "comm/security/keys.h"

namespace modelet::agent {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 10;
constexpr auto kBackOff = "back_off", kPrivate = "private";

using Read = std::function<void(const toml::node&, const std::string& place)>;

double number_in(const toml::node& node, const std::string& place, double least, double most) {
  const std::optional<double> value = node.value<double>();
  if (!node.is_number() || !value || !(*value >= least && *value <= most))
    throw UsageError(fmt::format("{} must be a number from {} to {}", place, least, most));
  return *value;
}

Read number(double& target, double least, double most) {
  return [&target, least, most](const toml::node& node, const std::string& place) {
    target = number_in(node, place, least, most);
  };
}

template <class Whole>
Read whole(Whole& target, double most) {
  return [&target, most](const toml::node& node, const std::string& place) {
    if (!node.is_integer()) throw UsageError(place + " must be a whole number");
    target = static_cast<Whole>(number_in(node, place, 0, most));
  };
}

// Parses "22:00" to minutes of the day. Returns nothing if it is no time.
std::optional<int> minutes_of(std::string_view text) {
  const auto digit = [&](size_t i) { return text[i] >= '0' && text[i] <= '9' ? text[i] - '0' : -1000; };
  if (text.size() != 5 || text[2] != ':') return std::nullopt;
  const int hour = 10 * digit(0) + digit(1), minute = 10 * digit(3) + digit(4);
  if (hour < 0 || hour > 23 || minute < 0 || minute > 59) return std::nullopt;
  return 60 * hour + minute;
}

Read hours(std::optional<Hours>& target) {
  return [&target](const toml::node& node, const std::string& place) {
    const std::string text = node.value<std::string>().value_or("");
    const size_t dash = text.find('-');
    const auto from = minutes_of(std::string_view(text).substr(0, dash));
    const auto to =
        dash == std::string::npos ? std::nullopt : minutes_of(std::string_view(text).substr(dash + 1));
    if (!from || !to) throw UsageError(place + " must be like \"22:00-06:00\", in local time");
    target = Hours{*from, *to};
  };
}

Read truth(bool& target) {
  return [&target](const toml::node& node, const std::string& place) {
    if (!node.is_boolean()) throw UsageError(place + " must be true or false");
    target = node.value<bool>().value();
  };
}

Read words(std::vector<std::string>& target) {
  return [&target](const toml::node& node, const std::string& place) {
    const UsageError error(place + " must be a list of names, such as [\"alice\"]");
    if (!node.is_array()) throw error;
    target.clear();
    for (const toml::node& each : *node.as_array()) {
      if (!each.is_string() || each.value<std::string>()->empty()) throw error;
      target.push_back(each.value<std::string>().value());
    }
  };
}

Read keys_of_agents(std::vector<std::string>& target) {
  return [&target](const toml::node& node, const std::string& place) {
    words(target)(node, place);
    for (std::string& key : target) key = comm::parse_key(key, place);
  };
}

void read_table(const toml::table& table, const std::map<std::string, Read>& keys,
                const std::string& origin) {
  std::vector<std::string> known;
  for (const auto& [key, read] : keys) known.push_back(key);
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const std::string place =
        fmt::format("{}:{}: '{}'", origin, key.source().begin.line, printable(name, 64));
    const auto found = keys.find(name);
    if (found == keys.end())
      throw UsageError(place + " is not a known key" + suggestion(name.substr(0, 64), known));
    found->second(node, place);
  }
}

}  // namespace

Preferences parse_preferences(std::string_view text, const std::string& origin) {
  constexpr double kDay = 86400;  // seconds
  Preferences result;
  BackOff& back_off = result.back_off;
  const std::map<std::string, Read> of_back_off = {
      {"tolerated_percent", number(back_off.tolerated_percent, 0, 100)},
      {"pressure_percent", number(back_off.pressure_percent, 0, 100)},
      {"memory_pressure_percent", number(back_off.memory_pressure_percent, 0, 100)},
      {"return_seconds", number(back_off.return_seconds, 1, kDay)},
      {"patience_seconds", number(back_off.patience_seconds, 1, kDay)},
  };
  const std::map<std::string, Read> of_private = {
      {"submitters", words(result.learning.submitters)},
      {"owners", keys_of_agents(result.learning.owners)},
      {"least_owners", whole(result.learning.least_owners, 1024)},
      {"most_rounds", whole(result.learning.most_rounds, 1e15)},
      {"budget", number(result.learning.budget, 0, 1e6)},
      {"delta", number(result.learning.delta, 1e-15, 0.1)},
      {"rows", truth(result.learning.rows)},
  };
  const auto section = [&](const char* name, const std::map<std::string, Read>& of_section) -> Read {
    return [&, name](const toml::node& node, const std::string& place) {
      if (!node.is_table())
        throw UsageError(fmt::format("{} is a section: write [{}] and its keys below", place, name));
      read_table(*node.as_table(), of_section, origin);
    };
  };
  const std::map<std::string, Read> keys = {
      {"cores", whole(result.cores, 4096)},
      {"memory_mib", whole(result.memory_mib, 1 << 30)},
      {"link_mbps", number(result.link_mbps, 0, 1e6)},
      {"hours", hours(result.hours)},
      {kBackOff, section(kBackOff, of_back_off)},
      {kPrivate, section(kPrivate, of_private)},
  };
  read_table(parse_toml_file(text, origin, "preferences are TOML in UTF-8: key = value"), keys, origin);
  constexpr double kLeastLink = 0.1;
  if (result.link_mbps > 0 && result.link_mbps < kLeastLink)
    throw UsageError(fmt::format("{}: link_mbps must be 0 (no limit) or at least {}", origin, kLeastLink));
  return result;
}

Preferences read_preferences(const std::filesystem::path& file) {
  std::string text;
  try {
    text = read_text_file(file, kMaxBytes);
  } catch (const Error& error) {
    throw UsageError(std::string(error.what()) + " (reading the preferences, --preferences)");
  }
  return parse_preferences(text, file.string());
}

}  // namespace modelet::agent
