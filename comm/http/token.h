// Tokens: secrets that requests bring, and what their holders may do. Files of tokens are for their owner alone.
// Pure functions, but for reading files; any thread may call them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace modelet::comm::http {

struct Token {
  std::string secret;
  bool may_act = true;    // false: a viewer's, which may look and change nothing
  std::string name = {};  // of its holder, for logs
};

// Reads the one token of a server, a file of a single line. Throws UsageError if it is no token, or if other users can
// read the file: whoever has the token may send requests.
std::string read_token_file(const std::string& file);

// Reads a file of lines "viewer TOKEN NAME" and "admin TOKEN NAME", with comments after '#'. Throws UsageError that
// names the line, or if other users can read the file.
std::vector<Token> read_tokens_file(const std::string& file);

// The token with this secret; nullptr: there is none. Takes a time that does not depend on where secrets differ.
const Token* find_token(const std::vector<Token>& tokens, std::string_view secret);

// The cookie that brings a token, as the value of Set-Cookie. Its name depends on the secret, because browsers give the
// cookies of a host to all ports of it.
std::string cookie_of(const Token& token);

// The token that the field Authorization ("Bearer TOKEN") or the field Cookie of a request brings; nullptr: neither does.
const Token* find_token(const std::vector<Token>& tokens, std::string_view authorization,
                        std::string_view cookies);

}  // namespace modelet::comm::http
