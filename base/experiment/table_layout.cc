#include "base/experiment/table_layout.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text/suggest.h"

namespace modelet {
namespace {

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> fields;
  for (;;) {
    const size_t end = text.find(at);
    fields.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return fields;
    text.remove_prefix(end + 1);
  }
}

// "i13" -> "i", 13.
std::optional<std::pair<std::string_view, uint32_t>> numbered(std::string_view name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;  // npos + 1 is 0
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data() + digits, name.data() + name.size(), number);
  if (error != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return std::pair(name.substr(0, digits), number);
}

class LayoutParser {
 public:
  TableLayout parse(std::span<const std::string> items) {
    for (const std::string& item : items) add(item);
    // Crosses name other columns, which may come anywhere in the list.
    for (const std::string& item : items)
      if (item.starts_with(kCross)) add_cross(item);
    item_.clear();
    if (layout_.labels.empty()) fail("has no label; add one, such as 'label:click'");
    for (const size_t label : layout_.labels)
      if (std::ranges::count(layout_.categories, label) +
              std::ranges::count(layout_.numbers, label, &TableLayout::Number::column) >
          0)
        fail("has '" + layout_.columns[label] +
             "' as a label and as a feature, which samples without labels lack");
    if (layout_.categories.empty() && layout_.numbers.empty())
      fail("has no feature; add a column with cat, bin, num or log");
    return std::move(layout_);
  }

 private:
  static constexpr std::string_view kCross = "cross:";

  [[noreturn]] void fail(const std::string& what) const { throw UsageError(item_ + what); }

  void add(const std::string& item) {
    item_ = "'" + item + "' ";
    if (item.starts_with(kCross)) return;
    const size_t colon = item.find(':');
    if (colon == std::string::npos) fail("is not KIND:COLUMNS, such as 'cat:c1..c26'");
    const std::string kind = item.substr(0, colon);
    for (const std::string& name : names_of(std::string_view(item).substr(colon + 1)))
      use(kind, column(name));
  }

  // a,b..c -> names.
  std::vector<std::string> names_of(std::string_view list) const {
    std::vector<std::string> names;
    for (const std::string_view entry : split(list, ',')) {
      const size_t dots = entry.find("..");
      if (entry.empty()) fail("has an empty name");
      if (dots == std::string_view::npos) {
        names.emplace_back(entry);
        continue;
      }
      const auto first = numbered(entry.substr(0, dots)), last = numbered(entry.substr(dots + 2));
      if (!first || !last || first->first != last->first || first->second > last->second ||
          last->second - first->second >= kMaxTableColumns)
        fail("has the range '" + std::string(entry) +
             "'; both ends must be the same word with a number that grows, such as 'i1..i13'");
      for (uint32_t i = first->second; i <= last->second; ++i)
        names.push_back(std::string(first->first) + std::to_string(i));
    }
    return names;
  }

  size_t column(const std::string& name) {
    const auto it = std::ranges::find(layout_.columns, name);
    if (it != layout_.columns.end()) return static_cast<size_t>(it - layout_.columns.begin());
    if (layout_.columns.size() == kMaxTableColumns)
      fail("is column number " + std::to_string(kMaxTableColumns + 1) + "; at most " +
           std::to_string(kMaxTableColumns) + " are possible");
    layout_.columns.push_back(name);
    return layout_.columns.size() - 1;
  }

  void use(const std::string& kind, size_t column) {
    const auto once = [&](auto& list, const auto& entry) {
      if (std::ranges::find(list, entry) != list.end())
        fail("mentions '" + layout_.columns[column] + "' again as " + kind);
      list.push_back(entry);
    };
    static constexpr std::pair<std::string_view, NumberKind> kNumbers[] = {
        {"bin", NumberKind::kBins}, {"num", NumberKind::kStandardised}, {"log", NumberKind::kLogarithm}};
    if (kind == "label") return once(layout_.labels, column);
    if (kind == "cat") return once(layout_.categories, column);
    for (const auto& [name, number] : kNumbers)
      if (kind == name) return once(layout_.numbers, TableLayout::Number{column, number});
    if (kind == "skip") return;
    static const std::array<std::string, 7> kKinds = {"label", "cat", "bin", "num", "log", "cross", "skip"};
    fail("has the unknown kind '" + kind + "'" + suggestion(kind, kKinds));
  }

  size_t cross_component(std::string_view name) const {
    const auto named = [&](size_t column) { return layout_.columns[column] == name; };
    const auto category = std::ranges::find_if(layout_.categories, named);
    if (category != layout_.categories.end())
      return static_cast<size_t>(category - layout_.categories.begin());
    const auto number = std::ranges::find_if(layout_.numbers, named, &TableLayout::Number::column);
    if (number == layout_.numbers.end())
      fail("crosses '" + std::string(name) +
           "', which is neither category nor number; add 'cat:" + std::string(name) + "'");
    return layout_.categories.size() + static_cast<size_t>(number - layout_.numbers.begin());
  }

  void add_cross(const std::string& item) {
    item_ = "'" + item + "' ";
    std::vector<size_t> components;
    for (const std::string_view name : split(std::string_view(item).substr(kCross.size()), '*')) {
      const size_t component = cross_component(name);
      if (std::ranges::find(components, component) != components.end())
        fail("crosses '" + std::string(name) + "' with itself");
      components.push_back(component);
    }
    if (components.size() < 2) fail("crosses one column; join two or more with '*', such as 'cross:c1*c2'");
    if (std::ranges::find(layout_.crosses, components) != layout_.crosses.end()) fail("is there twice");
    if (layout_.crosses.size() == kMaxTableColumns)
      fail("is one cross too many; at most " + std::to_string(kMaxTableColumns) + " are possible");
    layout_.crosses.push_back(std::move(components));
  }

  std::string item_;  // the item that is parsed, for messages
  TableLayout layout_;
};

}  // namespace

TableLayout parse_table_layout(std::span<const std::string> items) { return LayoutParser().parse(items); }

TableLayout table_layout(const Experiment::Table& table, DataFormat format) {
  static const std::vector<std::string> kCriteo = {"label:click", "bin:i1..i13", "cat:c1..c26"};
  const bool given = !table.columns.empty() || format != DataFormat::kCriteo;
  return parse_table_layout(given ? table.columns : kCriteo);
}

}  // namespace modelet
