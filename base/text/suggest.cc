#include "base/text/suggest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace modelet {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::string suggestion(std::string_view word, std::span<const std::string> known) {
  constexpr size_t kLongestWord = 64;
  const std::string_view shown = word.substr(0, kLongestWord);
  const std::string* nearest = nullptr;
  size_t distance = std::max<size_t>(2, shown.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t d = edit_distance(shown, candidate);
    if (d < distance) {
      distance = d;
      nearest = &candidate;
    }
  }
  if (nearest != nullptr) return "; did you mean '" + *nearest + "'?";
  std::string list;
  for (const std::string& candidate : known) list += (list.empty() ? "" : ", ") + candidate;
  return "; known: " + list;
}

}  // namespace modelet
