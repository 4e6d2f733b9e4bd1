#include "base/experiment/table_layout.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
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
    for (size_t i = 0; i < layout_.categories.size(); ++i)
      components_.emplace(layout_.columns[layout_.categories[i]], i);
    for (size_t i = 0; i < layout_.numbers.size(); ++i)
      components_.emplace(layout_.columns[layout_.numbers[i].column], layout_.categories.size() + i);
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
    for_each_name(std::string_view(item).substr(colon + 1),
                  [&](const std::string& name) { use(kind, column(name)); });
  }

  // a,b..c -> names.
  template <class Use>
  void for_each_name(std::string_view list, const Use& use) const {
    for (const std::string_view entry : split(list, ',')) {
      const size_t dots = entry.find("..");
      if (entry.empty()) fail("has an empty name");
      if (dots == std::string_view::npos) {
        use(std::string(entry));
        continue;
      }
      const auto first = numbered(entry.substr(0, dots)), last = numbered(entry.substr(dots + 2));
      if (!first || !last || first->first != last->first || first->second > last->second ||
          last->second - first->second >= kMaxTableColumns)
        fail("has the range '" + std::string(entry) +
             "'; both ends must be the same word with a number that grows, such as 'i1..i13'");
      for (uint32_t i = first->second; i <= last->second; ++i)
        use(std::string(first->first) + std::to_string(i));
    }
  }

  size_t column(const std::string& name) {
    const auto it = columns_.find(name);
    if (it != columns_.end()) return it->second;
    if (layout_.columns.size() == kMaxTableColumns)
      fail("is column number " + std::to_string(kMaxTableColumns + 1) + "; at most " +
           std::to_string(kMaxTableColumns) + " are possible");
    columns_.emplace(name, layout_.columns.size());
    layout_.columns.push_back(name);
    return layout_.columns.size() - 1;
  }

  void use(const std::string& kind, size_t column) {
    if (!mentioned_.emplace(kind, column).second)
      fail("mentions '" + layout_.columns[column] + "' again as " + kind);
    static constexpr std::pair<std::string_view, NumberKind> kNumbers[] = {
        {"bin", NumberKind::kBins}, {"num", NumberKind::kStandardised}, {"log", NumberKind::kLogarithm}};
    if (kind == "label") return layout_.labels.push_back(column);
    if (kind == "cat") return layout_.categories.push_back(column);
    for (const auto& [name, number] : kNumbers)
      if (kind == name) return layout_.numbers.push_back({column, number});
    if (kind == "skip") return;
    static const std::array<std::string, 7> kKinds = {"label", "cat", "bin", "num", "log", "cross", "skip"};
    fail("has the unknown kind '" + kind + "'" + suggestion(kind, kKinds));
  }

  size_t cross_component(std::string_view name) const {
    const auto found = components_.find(std::string(name));
    if (found == components_.end())
      fail("crosses '" + std::string(name) +
           "', which is neither category nor number; add 'cat:" + std::string(name) + "'");
    return found->second;
  }

  void add_cross(const std::string& item) {
    item_ = "'" + item + "' ";
    std::vector<size_t> components;
    std::set<size_t> seen;
    for (const std::string_view name : split(std::string_view(item).substr(kCross.size()), '*')) {
      const size_t component = cross_component(name);
      if (!seen.insert(component).second) fail("crosses '" + std::string(name) + "' with itself");
      components.push_back(component);
    }
    if (components.size() < 2) fail("crosses one column; join two or more with '*', such as 'cross:c1*c2'");
    if (!crosses_.insert(components).second) fail("is there twice");
    if (layout_.crosses.size() == kMaxTableColumns)
      fail("is one cross too many; at most " + std::to_string(kMaxTableColumns) + " are possible");
    layout_.crosses.push_back(std::move(components));
  }

  std::string item_;  // the item that is parsed, for messages
  TableLayout layout_;
  // What is found in it, without going through its lists: they may be long and from a stranger.
  std::unordered_map<std::string, size_t> columns_, components_;  // by name
  std::set<std::pair<std::string, size_t>> mentioned_;            // kinds of columns
  std::set<std::vector<size_t>> crosses_;
};

}  // namespace

TableLayout parse_table_layout(std::span<const std::string> items) { return LayoutParser().parse(items); }

TableLayout table_layout(const Experiment::Table& table, DataFormat format) {
  static const std::vector<std::string> kCriteo = {"label:click", "bin:i1..i13", "cat:c1..c26"};
  const bool given = !table.columns.empty() || format != DataFormat::kCriteo;
  return parse_table_layout(given ? table.columns : kCriteo);
}

}  // namespace modelet
