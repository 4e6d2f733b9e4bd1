// "Did you mean": the nearest of the known words.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace modelet {

// "; did you mean 'listen'?", or, if none is near, "; known: listen, insecure".
std::string suggestion(std::string_view word, std::span<const std::string> known);

}  // namespace modelet
