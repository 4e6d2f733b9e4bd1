#include "base/text/printable.h"

#include <spdlog/fmt/fmt.h>

#include <cstdint>

namespace modelet {
namespace {

constexpr std::string_view kCut = "...";

struct Character {
  char32_t code = 0;
  size_t bytes = 0;  // 0: not UTF-8
};

// The first character of `text`, which is not empty. Overlong forms, surrogates and codes past U+10FFFF are
// not UTF-8 (RFC 3629).
Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (lead < 0xc0 || lead >= 0xf8 || text.size() < bytes) return {};
  char32_t code = lead & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  if (code < kLeast[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, bytes};
}

bool steers(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) ||       // control characters, C0 and C1
         code == 0x61c || code == 0x200e || code == 0x200f ||  // direction of writing
         (code >= 0x2028 && code <= 0x202e) ||                 // separators of lines, direction
         (code >= 0x2066 && code <= 0x2069);
}

std::string escaped(char32_t code) {
  switch (code) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return code < 0x100 ? fmt::format("\\x{:02x}", static_cast<uint32_t>(code))
                          : fmt::format("\\u{:04x}", static_cast<uint32_t>(code));
  }
}

}  // namespace

std::string printable(std::string_view text, size_t most_bytes) {
  std::string result;
  size_t cut = 0;  // where `result` ends if what follows does not fit
  while (!text.empty()) {
    const auto [code, bytes] = first_character(text);
    if (bytes == 0)
      result += escaped(static_cast<uint8_t>(text.front()));
    else if (steers(code))
      result += escaped(code);
    else
      result += text.substr(0, bytes);
    if (result.size() > most_bytes) return result.substr(0, cut).append(kCut);
    if (result.size() + kCut.size() <= most_bytes) cut = result.size();
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return result;
}

}  // namespace modelet
