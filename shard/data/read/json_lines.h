// JSON Lines: a table whose records are objects, one a line, and what a value of JSON is as a cell of a table
// (docs/data_format.md, "Values"). CsvReader makes records of the lines. Pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/experiment/choices.h"
#include "shard/data/read/line_reader.h"

namespace modelet::shard {

// Whether a text is JSON Lines: its name ends so (.jsonl, .ndjson, .json), or its first byte opens an object. May wait
// for text of a stream.
bool is_json_lines(LineReader& text);
bool is_json_lines(const std::filesystem::path& text);

// Strict JSON in which whole numbers keep their digits, as they may be categories. FormatError that begins with `origin`.
nlohmann::json parse_json_values(std::string_view text, const std::string& origin, int most_nested);

// Between several texts in a cell of words: a line end, which divides words like any white space.
inline constexpr char kBetweenTexts = '\n';

// A value as a cell; null is a missing one. The values of a list are joined by the separator of the column, in which the
// encoder divides them again. `fail` gets the text of an error, and throws it.
std::string json_cell(const nlohmann::json& value, std::optional<char> separator,
                      const std::function<void(const std::string&)>& fail);

struct JsonKey {
  std::string name;
  std::optional<char> separator;  // between the values of a list
  bool used = true;               // false: its values may be anything, and a cell is its JSON
};

// A line as the cells of `keys`. `place` ("file:line") is for messages. `there`: which keys have a value.
void read_json_line(std::string_view line, const std::string& place, std::span<const JsonKey> keys,
                    std::vector<std::string>& cells, std::vector<bool>& there);

// A key of the first lines of a text.
struct FoundKey {
  std::string name;
  bool lists = false;                       // some values are lists
  Delimiter separator = Delimiter::kNone;   // which no value of its lists has in it
  uint64_t nested = 0;                      // the first line whose value is an object or a list of lists; 0: none
};
// In the order in which they appear, of at most so many lines and bytes. FormatError if there is none.
std::vector<FoundKey> find_json_keys(const std::filesystem::path& text, uint64_t most_lines, uint64_t most_bytes);

}  // namespace modelet::shard
