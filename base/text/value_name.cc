#include "base/text/value_name.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/text/parse_double.h"

namespace modelet {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Digits at the beginning of `text`, which are removed from it.
std::string_view take_digits(std::string_view& text) {
  const auto end = static_cast<size_t>(std::ranges::find_if_not(text, is_digit) - text.begin());
  const std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  return digits;
}

bool equal_but_for_case(std::string_view text, std::string_view lower) {
  return std::ranges::equal(text, lower, {},
                            [](char c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; });
}

}  // namespace

std::optional<std::string> number_name(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with('-')) rest.remove_prefix(1);
  const std::string_view digits = take_digits(rest);
  // Here nearly every text ends: no number, a whole number, or a code with zeros in front.
  if (digits.empty() || rest.empty() || (digits.front() == '0' && digits.size() > 1)) return std::nullopt;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    const std::string_view fraction = take_digits(rest);
    if (fraction.empty()) return std::nullopt;
    if (rest.empty()) {
      if (fraction.find_first_not_of('0') != std::string_view::npos) return std::nullopt;
      return digits == "0" ? "0" : std::string(text.substr(0, text.find('.')));
    }
  }
  if (!rest.starts_with("e+") && !rest.starts_with("E+")) return std::nullopt;
  rest.remove_prefix(2);
  if (take_digits(rest).empty() || !rest.empty()) return std::nullopt;
  double value = 0;
  if (parse_double(text.data(), text.data() + text.size(), value).ec != std::errc{}) return std::nullopt;
  if (!std::isfinite(value) || std::trunc(value) != value) return std::nullopt;
  std::array<char, std::numeric_limits<double>::max_exponent10 + 3> name;  // with a sign
  const auto [end, error] =
      std::to_chars(name.begin(), name.end(), value + 0.0, std::chars_format::fixed, 0);  // no "-0"
  return error == std::errc{} ? std::optional(std::string(name.begin(), end)) : std::nullopt;
}

std::optional<bool> truth_value(std::string_view text) {
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  return std::nullopt;
}

std::optional<std::string> category_name(std::string_view text) {
  if (const auto truth = truth_value(text)) return *truth ? "True" : "False";
  return number_name(text);
}

bool is_missing_number(std::string_view text) {
  static constexpr std::string_view kWords[] = {"", "nan", "-nan", "na", "n/a", "<na>", "null", "none"};
  return std::ranges::any_of(kWords, [&](std::string_view word) { return equal_but_for_case(text, word); });
}

}  // namespace modelet
