// What the parts of Core say and refuse alike (internal to scheduler/core*.cc): names, numbers of nodes,
// keys. Pure functions.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "comm/keys.h"

namespace modelet::scheduler {

inline constexpr size_t kLongestName = 64;  // characters

// Names become parts of paths and log lines.
inline bool is_name(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), allowed);
}

inline constexpr const char* kNameRule = "1 to 64 letters, digits, '.', '_', '-', not beginning with '.'";

// A quantity that somebody says he has measured.
inline bool is_measure(double value) { return std::isfinite(value) && value >= 0; }

inline std::string with_key(const comm::Identity& sender) {
  return sender.name.empty() ? "" : fmt::format(" with key '{}'", sender.name);
}

inline std::string nodes_text(size_t count) { return fmt::format("{} node{}", count, count == 1 ? "" : "s"); }

}  // namespace modelet::scheduler
