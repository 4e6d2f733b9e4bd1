// Returns the text of the Error that a call throws, or "no error" if it throws none.
#pragma once

#include <string>

#include "base/error.h"

namespace modelet::test {

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace modelet::test
