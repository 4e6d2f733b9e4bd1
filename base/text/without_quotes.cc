#include "base/text/without_quotes.h"

namespace modelet {

std::string without_quotes(const FormatError& error) {
  std::string text = error.what();
  const size_t first = text.find('\''), last = text.rfind('\'');
  if (first < last) text.replace(first + 1, last - first - 1, "...");
  return text;
}

std::string without_quotes(const MisfitError& error) {
  const std::string text = error.what();
  const size_t first = text.find('\'');
  return first == text.npos ? text : text.substr(0, first) + "'...'";
}

}  // namespace modelet
