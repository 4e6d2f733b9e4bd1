// "Did you mean": the nearest of the known words.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace modelet {

// Levenshtein distance: characters inserted, removed or replaced.
size_t edit_distance(std::string_view a, std::string_view b);

// "; did you mean 'listen'?", or, if none is near, "; known: listen, insecure".
std::string suggestion(std::string_view word, std::span<const std::string> known);

}  // namespace modelet
