// What a call that must fail says: the text of its Error, or "no error".
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
