#include "base/experiment/column_use.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "base/error.h"
#include "base/text/parse_double.h"
#include "base/text/suggest.h"

namespace modelet {
namespace {

constexpr uint32_t kMostBins = 1024;  // as table.bins
constexpr size_t kMostWindows = 8;
constexpr double kLongestWindow = 1e18;  // a time of nanoseconds has days of 1e14

// The words of a text, which spaces separate.
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = 0; (at = text.find_first_not_of(' ', at)) != std::string_view::npos;) {
    const size_t end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

std::string shortest(float value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

class UseParser {
 public:
  explicit UseParser(std::string_view text) : text_(text) {}

  ColumnUse parse() {
    const std::vector<std::string_view> words = words_of(text_);
    use_.type = choice<ColumnType>(words.empty() ? "" : words.front(), "has the unknown type");
    for (size_t i = 1; i < words.size(); ++i) read_option(words[i]);
    return use_;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw UsageError("is '" + std::string(text_) + "', which " + what);
  }

  template <Choice T>
  T choice(std::string_view word, const std::string& wrong) const {
    constexpr auto known = spellings(T{});
    const auto found = std::ranges::find(known, word);
    if (found != known.end()) return static_cast<T>(found - known.begin());
    const std::vector<std::string> names(known.begin(), known.end());
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    fail(wrong + " '" + std::string(word) + "'" + suggestion(word, names) + "; known: " + list);
  }

  void read_option(std::string_view word) {
    const std::string_view name = word.substr(0, word.find('='));
    const std::string_view value = word.substr(std::min(name.size() + 1, word.size()));
    const bool values = use_.type == ColumnType::kCategory || use_.type == ColumnType::kTarget;
    if (name == "separator" && values)
      use_.separator = choice<Delimiter>(value, "has the unknown separator");
    else if (name == "min_count" && use_.type == ColumnType::kCategory)
      use_.min_count = number(name, value, 1, UINT32_MAX);
    else if (name == "bins" && use_.type == ColumnType::kNumber)
      use_.bins = number(name, value, 2, kMostBins);
    else if (name == "windows" && use_.type == ColumnType::kTime)
      use_.windows = windows(value);
    else
      fail("has the option '" + std::string(name) + "', which " + std::string(spelling(use_.type)) +
           " does not have; category has separator and min_count, target separator, number bins, time windows");
  }

  uint32_t number(std::string_view name, std::string_view text, uint32_t low, uint32_t high) const {
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high)
      fail("needs a whole number of " + std::to_string(low) + " to " + std::to_string(high) + " after " +
           std::string(name) + "=");
    return value;
  }

  std::vector<float> windows(std::string_view list) const {
    std::vector<float> windows;
    for (size_t begin = 0; begin <= list.size();) {
      const std::string_view each = list.substr(begin, list.find(',', begin) - begin);
      double value = 0;
      const auto [end, error] = parse_double(each.data(), each.data() + each.size(), value);
      if (error != std::errc{} || end != each.data() + each.size() || !(value > 0) || value > kLongestWindow ||
          windows.size() == kMostWindows)
        fail("needs at most " + std::to_string(kMostWindows) + " numbers above 0 after windows=, such as windows=1,7,30");
      windows.push_back(static_cast<float>(value));
      begin += each.size() + 1;
    }
    return windows;
  }

  std::string_view text_;
  ColumnUse use_;
};

}  // namespace

ColumnUse parse_column_use(std::string_view text) { return UseParser(text).parse(); }

std::string to_text(const ColumnUse& use) {
  std::string text(spelling(use.type));
  if (use.separator != Delimiter::kNone) text += " separator=" + std::string(spelling(use.separator));
  if (use.min_count > 0) text += " min_count=" + std::to_string(use.min_count);
  if (use.bins > 0) text += " bins=" + std::to_string(use.bins);
  for (size_t i = 0; i < use.windows.size(); ++i)
    text += (i == 0 ? " windows=" : ",") + shortest(use.windows[i]);
  return text;
}

ColumnUses column_uses(const std::map<std::string, std::string>& columns) {
  ColumnUses uses;
  for (const auto& [name, text] : columns) uses.emplace(name, parse_column_use(text));
  return uses;
}

void require_trainable(const ColumnUses& uses) {
  size_t targets = 0, labels = 0, features = 0, entities = 0, times = 0;
  for (const auto& [name, use] : uses) {
    targets += use.type == ColumnType::kTarget ? 1 : 0;
    labels += use.type == ColumnType::kLabel ? 1 : 0;
    features += use.type < ColumnType::kTarget ? 1 : 0;
    entities += use.type == ColumnType::kEntity ? 1 : 0;
    times += use.type == ColumnType::kTime ? 1 : 0;
  }
  if (targets + std::min<size_t>(labels, 1) != 1)
    throw UsageError(
        "[columns] has " + std::to_string(targets) + " columns of type target and " + std::to_string(labels) +
        " of type label: give one target, such as product = \"target\", or labels, such as clicked = \"label\"");
  if (entities != times || entities > 1)
    throw UsageError("[columns] has " + std::to_string(entities) + " columns of type entity and " +
                     std::to_string(times) +
                     " of type time: histories need one of each, such as user = \"entity\" and bought = \"time\"");
  if (features + entities == 0)
    throw UsageError("[columns] has no column with features: add text, category, number or date, or entity and time");
}

}  // namespace modelet
