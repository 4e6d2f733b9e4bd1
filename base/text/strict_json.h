// JSON from outside: strict where the usual parser is lenient. Only .cc files include it: it pulls in the whole JSON library.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace modelet {

// Parses exactly one JSON document. Syntax errors, a key that appears twice in an object, nesting deeper than
// `max_depth`, and more than a million values are a FormatError that starts with `origin` (the file's path).
// The work is linear in the text.
// `keep_digits`: whole numbers of more than 64 bits become strings of their digits; otherwise they are
// rounded.
nlohmann::json parse_strict_json(std::string_view text, std::string_view origin, int max_depth,
                                 bool keep_digits = false);

// The same for a message or a line of a log, of which a malformed one is left out: nothing if `text` is not an
// object, or nests deeper than 8.
std::optional<nlohmann::json> parse_json_object(std::string_view text);

// Member `key` of an object; FormatError if `object` is not an object, or the member is missing or of another
// kind. unsigned_at also refuses values that are negative, fractional or above 2^64 - 1.
const nlohmann::json& member_at(const nlohmann::json& object, const char* key, std::string_view origin);
uint64_t unsigned_at(const nlohmann::json& object, const char* key, std::string_view origin);
double number_at(const nlohmann::json& object, const char* key, std::string_view origin);
std::string string_at(const nlohmann::json& object, const char* key, std::string_view origin);

}  // namespace modelet
