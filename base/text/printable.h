// Text from outside: from another machine, a user, a file. Before it is logged, kept or shown it goes through
// printable(), so that it cannot forge a line of a log, send commands to a terminal, or break readers that
// expect UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace modelet {

// `text` as one line of valid UTF-8 of at most `most_bytes` (3 or more). Control characters and those that
// change the direction of writing are escaped ("\n", "\x1b", "\u202e"), and so are bytes that are not UTF-8
// ("\xff"). Text that is too long is cut between two characters and ends in "...". Text that is printable
// stays as it is.
std::string printable(std::string_view text, size_t most_bytes = std::string::npos);

}  // namespace modelet
