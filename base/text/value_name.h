// What a value is called, and when a number is missing: one rule for CSV, JSON and Python (docs/data_format.md,
// "Values"). Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace modelet {

// The name of a number that is whole but not written so: "1" for "1.0" and "1.00", all digits for "1e+16", as
// programs write floats. Nothing for any other text, which is its own name; "01.0" and "1e3" may be codes.
std::optional<std::string> number_name(std::string_view text);

// True and false as Python, JSON and spreadsheets write them.
std::optional<bool> truth_value(std::string_view text);

// As number_name(), also for truth_value(): "True" or "False".
std::optional<std::string> category_name(std::string_view text);

// False for texts that the two functions above return nothing for. Both answers hold for many words at a time: click logs
// have so many short ones that a branch on the contents of each would take longer than hashing it.
inline bool may_hold_number_names(std::string_view text) {
  return text.find('.') != std::string_view::npos || text.find('+') != std::string_view::npos;
}
inline bool may_be_truth_value(std::string_view text) { return text.size() == 4 || text.size() == 5; }

// Whether a text stands for a missing number: nothing, or a word such as "nan", "NA" and "null".
bool is_missing_number(std::string_view text);

}  // namespace modelet
