// Preferences: what the owner of a machine lends of it, and when. A TOML file (docs/owners.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace modelet::agent {

// Minutes of the day, local time; may go over midnight. Equal ends: the whole day.
struct Hours {
  int from = 0, to = 0;
  bool contains(int minute) const {
    return from < to ? from <= minute && minute < to : from == to || minute >= from || minute < to;
  }
};

// When an agent makes room for others.
struct BackOff {
  double tolerated_percent = 10;  // of the cores that others may use before the agent uses fewer
  // Of the time that somebody waits for a core; beyond, and others work: there is not enough for both.
  double pressure_percent = 30;
  double return_seconds = 15;    // others must have been quiet for so long before it uses more again
  double patience_seconds = 60;  // with no core, until it leaves its run to others
};

struct Preferences {
  uint32_t cores = 0;          // lent at most; 0: as --cores says
  uint64_t memory_mib = 0;     // lent at most; 0: as --memory-mib says
  double link_mbps = 0;        // megabits a second that it sends at most, and fetches of data; 0: no limit
  std::optional<Hours> hours;  // none: always
  BackOff back_off;
};

// UsageError with file and line: an unknown key, a value of another type or outside its range.
Preferences read_preferences(const std::filesystem::path& file);
Preferences parse_preferences(std::string_view text, const std::string& origin);

}  // namespace modelet::agent
