#include "shard/data/read/json_lines.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/text/strict_json.h"
#include "shard/data/read/csv.h"

namespace modelet::shard {
namespace {

constexpr int kMostNestedInTable = 32;  // of values that are not used
constexpr std::array kOfLists = {Delimiter::kPipe, Delimiter::kSemicolon, Delimiter::kTab, Delimiter::kComma};

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

nlohmann::json object_of(std::string_view line, const std::string& place) {
  constexpr const char* kHint = "; JSON Lines has an object in each line, as 'jq -c' writes it (for one list of all: 'jq -c .[]')";
  nlohmann::json object;
  try {
    object = parse_json_values(line, place, kMostNestedInTable);
  } catch (const FormatError& error) {
    throw FormatError(error.what() + std::string(kHint));
  }
  if (!object.is_object()) throw FormatError(place + ": an object of columns and their values is expected" + kHint);
  return object;
}

bool is_nested(const nlohmann::json& value) {
  return value.is_object() ||
         (value.is_array() && std::ranges::any_of(value, [](const nlohmann::json& each) { return each.is_structured(); }));
}

std::string quoted_list(std::span<const JsonKey> keys) {
  constexpr size_t kShown = 5;
  std::string list;
  for (size_t i = 0; i < std::min(kShown, keys.size()); ++i) list += (i > 0 ? ", " : "") + shard::quoted(keys[i].name);
  return list + (keys.size() > kShown ? ", ..." : "");
}

// What is known of the lists of a key while lines are read.
struct ListOfKey {
  FoundKey found;
  std::array<bool, kOfLists.size()> taken{};  // by values

  void add(const nlohmann::json& value, uint64_t line) {
    if (found.nested == 0 && is_nested(value)) found.nested = line;
    if (!value.is_array()) return;
    found.lists = true;
    for (const nlohmann::json& each : value)
      if (each.is_string())
        for (size_t i = 0; i < kOfLists.size(); ++i)
          taken[i] |= each.get_ref<const std::string&>().find(character(kOfLists[i])) != std::string::npos;
  }
  FoundKey finish() && {
    const auto free = std::ranges::find(taken, false);
    if (found.lists && free != taken.end()) found.separator = kOfLists[static_cast<size_t>(free - taken.begin())];
    return std::move(found);
  }
};

}  // namespace

bool is_json_lines(LineReader& text) {
  static constexpr std::array<std::string_view, 3> kEndings = {".jsonl", ".ndjson", ".json"};
  if (!text.has_head()) return false;
  return std::ranges::count(kEndings, plain_ending(text.name())) > 0 || text.first_byte() == '{';
}

bool is_json_lines(const std::filesystem::path& text) {
  LineReader lines(text);
  return is_json_lines(lines);
}

nlohmann::json parse_json_values(std::string_view text, const std::string& origin, int most_nested) {
  try {
    return parse_strict_json(text, origin, most_nested, true);
  } catch (const FormatError& error) {
    if (text.find("NaN") == std::string_view::npos) throw;
    throw FormatError(error.what() + std::string("; JSON has no NaN: a missing value is null"));
  }
}

std::string json_cell(const nlohmann::json& value, std::optional<char> separator,
                      const std::function<void(const std::string&)>& fail) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_null()) return "";
  if (!value.is_array() || is_nested(value))
    fail("a string, a number, true, false, null (nothing is known) or a list of these is expected, and no nested value: "
         "give its parts columns of their own");
  if (!separator)
    fail("a list is for a column of text, or with a separator, such as 'category separator=pipe'; a string, a number, true, "
         "false or null is expected");
  std::string cell;
  for (const nlohmann::json& each : value) {
    const std::string part = json_cell(each, std::nullopt, fail);
    if (part.empty()) continue;
    if (*separator != kBetweenTexts && part.find(*separator) != std::string::npos)
      fail("the value " + shard::quoted(part) + " of a list has the column's separator in it; give the column another one");
    if (!cell.empty()) cell += *separator;
    cell += part;
  }
  return cell;
}

void read_json_line(std::string_view line, const std::string& place, std::span<const JsonKey> keys,
                    std::vector<std::string>& cells, std::vector<bool>& there) {
  const nlohmann::json object = object_of(line, place);
  cells.assign(keys.size(), "");
  there.assign(keys.size(), false);
  bool any = object.empty();
  for (size_t key = 0; key < keys.size(); ++key) {
    const auto member = object.find(keys[key].name);
    if (member == object.end()) continue;
    any = true;
    there[key] = !member->is_null();
    cells[key] = keys[key].used ? json_cell(*member, keys[key].separator,
                                            [&](const std::string& what) {
                                              throw FormatError(place + ": column " + shard::quoted(keys[key].name) + ": " + what);
                                            })
                                : member->dump();
  }
  if (!any)
    throw FormatError(place + ": has none of the columns " + quoted_list(keys) + ", but " + shard::quoted(object.begin().key()) +
                      "; is this the right file?");
}

std::vector<FoundKey> find_json_keys(const std::filesystem::path& text, uint64_t most_lines, uint64_t most_bytes) {
  LineReader lines(text);
  std::unordered_map<std::string, size_t> place_of;
  std::vector<ListOfKey> keys;
  uint64_t records = 0;
  for (std::string_view line; records < most_lines && lines.bytes() < most_bytes && lines.next(line);) {
    if (is_blank(line)) continue;
    ++records;
    const nlohmann::json object = object_of(line, lines.name() + ":" + std::to_string(lines.line_number()));
    for (const auto& member : object.items()) {
      const auto [place, is_new] = place_of.emplace(member.key(), keys.size());
      if (is_new) keys.emplace_back().found.name = member.key();
      if (keys.size() > kMaxCsvFields)
        lines.fail("more than " + std::to_string(kMaxCsvFields) + " different keys; a key is the name of a column");
      keys[place->second].add(member.value(), lines.line_number());
    }
  }
  if (keys.empty()) throw FormatError(text.string() + ": the file is empty, records are expected");
  std::vector<FoundKey> found;
  for (ListOfKey& key : keys) found.push_back(std::move(key).finish());
  return found;
}

}  // namespace modelet::shard
