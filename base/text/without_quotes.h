// What an error says to somebody who may not be allowed to read the file that it is about: the file, the line and what
// is wrong there, without what it quotes from the file.
#pragma once

#include <string>

#include "base/error.h"

namespace modelet {

std::string without_quotes(const FormatError& error);
std::string without_quotes(const MisfitError& error);

}  // namespace modelet
