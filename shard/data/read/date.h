// Dates and times as programs write them: 2026-11-30 or 2026/11/30, then a time if there is one, behind a T or a space:
// 09:41, with seconds and fractions of them, and Z or an offset such as +01:00. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace modelet::shard {

struct Date {
  int year = 0;
  uint32_t month = 0, day = 0;  // from 1
  uint32_t weekday = 0;         // from 0: Monday
  std::optional<uint32_t> hour;
  double days = 0;  // since the beginning of 1970, with the time of the day as a fraction
};

// Nothing for any other text, and for a day that no calendar has. What is written counts: an offset changes nothing.
std::optional<Date> parse_date(std::string_view text);

}  // namespace modelet::shard
