#include "base/text/toml.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "base/error.h"

namespace modelet {
namespace {

constexpr size_t kDeepest = 16;  // lists and tables in one another, and dots in a key

// The place behind the string that begins at `at`. One without an end reaches to the end of its line or, if it
// may have several lines, to the end of the text.
size_t end_of_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const std::string long_quote(3, quote);
  const bool is_long = text.substr(at, 3) == long_quote;
  for (at += is_long ? 3 : 1; at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (is_long && text.substr(at, 3) == long_quote) {
      at += 3;
      // Up to two quotes before the end belong to the string.
      for (int more = 0; more < 2 && at < text.size() && text[at] == quote; ++more) ++at;
      return at;
    } else if (!is_long && (text[at] == quote || text[at] == '\n')) {
      return at + (text[at] == quote ? 1 : 0);
    }
  }
  return text.size();
}

toml::source_position position(std::string_view text, size_t at) {
  const std::string_view before = text.substr(0, at);
  const size_t line = static_cast<size_t>(std::ranges::count(before, '\n')) + 1;
  const size_t begin = before.rfind('\n') + 1;  // npos + 1 is 0
  return {static_cast<toml::source_index>(line), static_cast<toml::source_index>(at - begin + 1)};
}

void require_shallow(std::string_view text) {
  size_t open = 0, dots = 0;
  for (size_t at = 0; at < text.size();) {
    switch (text[at]) {
      case '#':
        at = std::min(text.find('\n', at), text.size());
        continue;
      case '"':
      case '\'':
        at = end_of_string(text, at);
        continue;
      case '[':
      case '{':
        ++open;
        dots = 0;
        break;
      case ']':
      case '}':
        open -= std::min<size_t>(open, 1);
        dots = 0;
        break;
      case '=':
      case ',':
      case '\n':
        dots = 0;
        break;
      case '.':
        ++dots;
        break;
      default:
        break;
    }
    if (open > kDeepest || dots > kDeepest)
      throw toml::parse_error("lists, tables or parts of a dotted key are nested deeper than 16",
                              position(text, at));
    ++at;
  }
}

}  // namespace

toml::table parse_toml(std::string_view text) {
  require_shallow(text);
  return toml::parse(text);
}

toml::table parse_toml_file(std::string_view text, const std::string& path, const std::string& wanted) {
  try {
    return parse_toml(text);
  } catch (const toml::parse_error& error) {
    const toml::source_position at = error.source().begin;
    throw UsageError(path + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": " +
                     std::string(error.description()) + "; " + wanted +
                     ", with quotes around texts, and true or false");
  }
}

}  // namespace modelet
