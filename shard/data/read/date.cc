#include "shard/data/read/date.h"

#include <algorithm>
#include <chrono>

namespace modelet::shard {
namespace {

// Takes exactly `digits` digits from the beginning of a text.
std::optional<uint32_t> take_number(std::string_view& text, size_t digits) {
  if (text.size() < digits) return std::nullopt;
  uint32_t value = 0;
  for (const char c : text.substr(0, digits)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<uint32_t>(c - '0');
  }
  text.remove_prefix(digits);
  return value;
}

bool take_char(std::string_view& text, char wanted) {
  if (!text.starts_with(wanted)) return false;
  text.remove_prefix(1);
  return true;
}

// "09:41:07.25", whose seconds may be missing: the part of the day, or nothing.
std::optional<double> take_time(std::string_view& text, uint32_t& hour) {
  const auto hours = take_number(text, 2);
  if (!hours || !take_char(text, ':')) return std::nullopt;
  const auto minutes = take_number(text, 2);
  if (!minutes || *hours > 23 || *minutes > 59) return std::nullopt;
  hour = *hours;
  double seconds = 0;
  if (take_char(text, ':')) {
    const auto whole = take_number(text, 2);
    if (!whole || *whole > 60) return std::nullopt;
    seconds = *whole;
    if (take_char(text, '.')) {
      const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
      if (digits == 0) return std::nullopt;
      text.remove_prefix(digits);  // less than a second
    }
  }
  return (*hours * 3600 + *minutes * 60 + seconds) / 86400;
}

// "Z", "+01:00", "+0100", "+01", or nothing.
bool is_offset(std::string_view text) {
  if (text.empty() || text == "Z") return true;
  if (text.front() != '+' && text.front() != '-') return false;
  text.remove_prefix(1);
  if (!take_number(text, 2)) return false;
  if (text.empty()) return true;
  take_char(text, ':');
  return take_number(text, 2) && text.empty();
}

}  // namespace

std::optional<Date> parse_date(std::string_view text) {
  const auto year = take_number(text, 4);
  const char separator = text.empty() ? '\0' : text.front();
  if (!year || *year == 0 || (separator != '-' && separator != '/') || !take_char(text, separator)) return std::nullopt;
  const auto month = take_number(text, 2);
  if (!month || !take_char(text, separator)) return std::nullopt;
  const auto day = take_number(text, 2);
  if (!day) return std::nullopt;
  const std::chrono::year_month_day on(std::chrono::year(static_cast<int>(*year)), std::chrono::month(*month),
                                       std::chrono::day(*day));
  if (!on.ok()) return std::nullopt;
  const std::chrono::sys_days since(on);
  Date date{.year = static_cast<int>(*year),
            .month = *month,
            .day = *day,
            .weekday = std::chrono::weekday(since).iso_encoding() - 1,
            .days = static_cast<double>(since.time_since_epoch().count())};
  if (text.empty()) return date;
  if (text.front() != 'T' && text.front() != ' ') return std::nullopt;
  text.remove_prefix(1);
  uint32_t hour = 0;
  const auto time = take_time(text, hour);
  if (!time) return std::nullopt;
  if (text.starts_with(' ')) text.remove_prefix(1);
  if (!is_offset(text)) return std::nullopt;
  date.hour = hour;
  date.days += *time;
  return date;
}

}  // namespace modelet::shard
