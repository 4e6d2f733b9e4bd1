// parse_double: std::from_chars for numbers in data, which rounds a number too small for a double to zero
// instead of refusing it. A pure function; thread-safe as such.
#pragma once

#include <charconv>

namespace modelet {

// As std::from_chars, independent of the locale; std::errc::result_out_of_range only for what is too large.
std::from_chars_result parse_double(const char* begin, const char* end, double& value);

}  // namespace modelet
