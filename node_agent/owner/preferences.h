// Preferences: what a machine's owner lends of it, and when. It is a TOML file (docs/owners.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace modelet::agent {

// A range of minutes of the day, in local time. It may go past midnight. Equal ends mean the whole day.
struct Hours {
  int from = 0, to = 0;
  bool contains(int minute) const {
    return from < to ? from <= minute && minute < to : from == to || minute >= from || minute < to;
  }
};

// When an agent makes room for others.
struct BackOff {
  double tolerated_percent = 10;  // of the cores; if others use more, the agent uses fewer
  // Of the time. If some process waits for a core for longer than this while others work, there are too few
  // cores for both.
  double pressure_percent = 30;
  // The same for memory, whoever works: the agent then leaves, because only that gives memory back.
  double memory_pressure_percent = 30;
  double return_seconds = 15;  // how long others must be quiet before it uses more again
  // How long it keeps its run without a core. With other nodes in the run: at most kPatienceWithPeers.
  double patience_seconds = 60;
};

// Which runs may learn from private data (node_agent/owner/private_data.h).
struct Learning {
  std::vector<std::string> submitters;  // names of the keys that may submit them; empty: any
  // Public keys of the agents with which this one may sum; empty: any. Only these can then be in a sum, each once.
  std::vector<std::string> owners = {};
  // Fewest owners in a sum. Of a sum of two, each can tell what the other one gave.
  uint32_t least_owners = 3;
  uint64_t most_rounds = 0;  // of all runs together; 0: no limit
  double budget = 0;         // of privacy: the largest epsilon at `delta`, of all runs together; 0: no limit
  double delta = 1e-5;
  bool rows = false;  // also with cluster.privacy = rows, which shows each owner's changes to the others
};

struct Preferences {
  uint32_t cores = 0;          // most that is lent; 0: as --cores says
  uint64_t memory_mib = 0;     // most that is lent; 0: as --memory-mib says
  double link_mbps = 0;        // megabits a second for sending, and for fetching data; 0: no limit
  std::optional<Hours> hours;  // none: always
  BackOff back_off;
  Learning learning;
};

// Both throw UsageError, with file and line, for an unknown key, a value of the wrong type, or one outside
// its range.
Preferences read_preferences(const std::filesystem::path& file);
Preferences parse_preferences(std::string_view text, const std::string& origin);

}  // namespace modelet::agent
