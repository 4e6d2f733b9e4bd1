#include "comm/http/token.h"

#include <sodium.h>
#include <spdlog/fmt/fmt.h>
#include <strings.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/system/file.h"
#include "base/text/printable.h"

namespace modelet::comm::http {
namespace {

constexpr std::string_view kCookiePrefix = "modelet-";
constexpr size_t kFewestTokenBytes = 16, kMostTokenBytes = 1024, kMostTokensBytes = 64 << 10,
                 kMostHolderBytes = 64;

std::string read_private_file(const std::string& file, size_t most_bytes) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) throw UsageError(errno_text(file));
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    throw UsageError(file + ": others may read or change this token: chmod 600 it");
  return read_text_file(file, most_bytes);
}

void check_secret(const std::string& secret, const std::string& place) {
  if (secret.size() < kFewestTokenBytes ||
      !std::ranges::all_of(secret, [](char c) { return c > ' ' && c < 127; }))
    throw UsageError(
        fmt::format("{}: a token is at least {} visible ASCII characters; 'openssl rand -hex 32' "
                    "makes one",
                    place, kFewestTokenBytes));
}

// The text that a cookie can carry whatever the secret has: what follows from it, and it does not follow from that.
std::string cookie_value(const Token& token) {
  std::array<unsigned char, 32> hash{};
  constexpr std::string_view kPurpose = "modelet cookie";
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(token.secret.data()),
                     token.secret.size(), reinterpret_cast<const unsigned char*>(kPurpose.data()),
                     kPurpose.size());
  std::string hex;
  for (const unsigned char byte : hash) hex += fmt::format("{:02x}", byte);
  return hex;
}

bool are_equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

std::string read_token_file(const std::string& file) {
  std::string token = read_private_file(file, kMostTokenBytes);
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  check_secret(token, file);
  return token;
}

std::vector<Token> read_tokens_file(const std::string& file) {
  constexpr const char* kLine = "a line is 'viewer TOKEN NAME' or 'admin TOKEN NAME'";
  std::istringstream lines(read_private_file(file, kMostTokensBytes));
  std::vector<Token> tokens;
  std::set<std::string> secrets, names;
  std::string line;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    const std::string place = fmt::format("{}:{}", file, number);
    std::istringstream words(line.substr(0, line.find('#')));
    std::string role, rest;
    Token token;
    if (!(words >> role)) continue;
    if (role != "viewer" && role != "admin")
      throw UsageError(
          fmt::format("{}: '{}' is not a role; {}", place, printable(role, kMostHolderBytes), kLine));
    if (!(words >> token.secret >> token.name) || words >> rest)
      throw UsageError(fmt::format("{}: {}, with a name of one word", place, kLine));
    check_secret(token.secret, place);
    if (token.name.size() > kMostHolderBytes || printable(token.name) != token.name)
      throw UsageError(
          fmt::format("{}: a name has at most {} bytes of printable text", place, kMostHolderBytes));
    if (!names.insert(token.name).second)
      throw UsageError(fmt::format("{}: the name '{}' is given twice", place, token.name));
    if (!secrets.insert(token.secret).second)
      throw UsageError(fmt::format("{}: the token of '{}' is another one's as well", place, token.name));
    token.may_act = role == "admin";
    tokens.push_back(std::move(token));
  }
  if (tokens.empty()) throw UsageError(fmt::format("{}: there is no token in it; {}", file, kLine));
  return tokens;
}

const Token* find_token(const std::vector<Token>& tokens, std::string_view secret) {
  const Token* found = nullptr;
  for (const Token& token : tokens)
    if (are_equal(token.secret, secret)) found = &token;
  return found;
}

std::string cookie_of(const Token& token) {
  constexpr size_t kNameDigits = 8;
  const std::string value = cookie_value(token);
  return fmt::format("{}{}={}; Path=/; HttpOnly; SameSite=Strict", kCookiePrefix,
                     value.substr(0, kNameDigits), value);
}

const Token* find_token(const std::vector<Token>& tokens, std::string_view authorization,
                        std::string_view cookies) {
  constexpr std::string_view kScheme = "Bearer ";  // its case does not matter (RFC 9110)
  if (authorization.size() > kScheme.size() &&
      ::strncasecmp(authorization.data(), kScheme.data(), kScheme.size()) == 0)
    return find_token(tokens, authorization.substr(kScheme.size()));
  while (!cookies.empty()) {
    std::string_view cookie = cookies.substr(0, cookies.find(';'));
    cookies.remove_prefix(std::min(cookie.size() + 1, cookies.size()));
    while (cookie.starts_with(' ')) cookie.remove_prefix(1);
    const size_t equals = cookie.find('=');
    if (!cookie.starts_with(kCookiePrefix) || equals == std::string_view::npos) continue;
    for (const Token& token : tokens)
      if (are_equal(cookie_value(token), cookie.substr(equals + 1))) return &token;
  }
  return nullptr;
}

}  // namespace modelet::comm::http
