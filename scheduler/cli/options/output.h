// What several verbs print on standard output.
#pragma once

#include <unistd.h>

#include <iostream>

#include "scheduler/client/terminal.h"

namespace modelet::cli {

// Prints an object as one line of JSON. Text that is not UTF-8 (names of labels) is no error.
template <class Json>
void print_line(const Json& object) {
  std::cout << object.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
}

// Prints a table as wide as the terminal; in full if there is no terminal.
inline void print(const Table& table) {
  const Terminal terminal = terminal_of(STDOUT_FILENO);
  std::cout << table.text(terminal.there() ? terminal.columns() : 0);
}

}  // namespace modelet::cli
