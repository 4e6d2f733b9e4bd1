#include "shard/data/encode/graph_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/text/parse_double.h"
#include "base/text/printable.h"
#include "base/text/suggest.h"
#include "base/text/value_name.h"
#include "shard/data/encode/features/string_table.h"
#include "shard/data/read/cells.h"
#include "shard/data/read/sample_reader.h"

namespace modelet::shard {
namespace {

constexpr char kBetweenNeighbours = '|';
constexpr uint64_t kMostLooked = UINT64_MAX;
constexpr size_t kMostValues = 256;  // of a column of categories: each adds columns

using FieldSpan = std::span<const std::string_view>;

size_t column_place(const std::string& name, const std::vector<std::string>& names, const std::filesystem::path& table) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end())
    throw UsageError(table.string() + ": has no column " + quoted(std::string_view(name)) + suggestion(name, names));
  return static_cast<size_t>(found - names.begin());
}

void append_field(std::string_view field, const CsvDialect& dialect, std::string& line) {
  if (!dialect.quotes ||
      (field.find_first_of("\"\n\r") == std::string_view::npos && field.find(dialect.delimiter) == std::string_view::npos)) {
    line += field;
    return;
  }
  line += '"';
  for (const char c : field) line.append(c == '"' ? 2 : 1, c);
  line += '"';
}

std::string text_of(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), static_cast<float>(value)).ptr};
}

// Each value of a node [columns]; NaN if it is missing.
struct GraphColumns {
  std::vector<std::string> names;
  std::vector<std::vector<float>> values;  // [columns][nodes]
};

class GraphTable {
 public:
  explicit GraphTable(const GraphOptions& options) : options_(options) {}

  GraphCounts write(const std::function<void(std::string_view)>& write) {
    read_nodes();
    if (!options_.edges.empty()) read_edges();
    sort_edges();
    add_up();
    write_nodes(write);
    return {nodes_.size(), ends_.size() / 2, headings_.size()};
  }

 private:
  CsvReader open(const std::filesystem::path& path, std::vector<std::string>& names) const {
    CsvReader table(LineReader(path), options_.dialect);
    if (table.is_json()) {
      std::vector<JsonKey> keys;
      for (const FoundKey& key : find_json_keys(path, kMostLooked, kMostLooked)) {
        names.push_back(key.name);
        keys.push_back({key.name, kBetweenNeighbours, path == options_.edges || is_needed(key.name)});
      }
      table.read_keys(std::move(keys));
      return table;
    }
    FieldSpan fields;
    if (!table.next(fields)) throw FormatError(path.string() + ": the file is empty, a header is expected");
    names.assign(fields.begin(), fields.end());
    return table;
  }

  bool is_needed(const std::string& column) const {
    return column == options_.id || column == options_.neighbours || std::ranges::count(options_.numbers, column) > 0 ||
           std::ranges::count(options_.categories, column) > 0;
  }

  void read_nodes() {
    std::vector<std::string> names;
    CsvReader table = open(options_.nodes, names);
    const size_t id = column_place(options_.id, names, options_.nodes);
    std::vector<size_t> numbers, categories;
    for (const std::string& name : options_.numbers) numbers.push_back(column_place(name, names, options_.nodes));
    for (const std::string& name : options_.categories) categories.push_back(column_place(name, names, options_.nodes));
    const bool listed = options_.edges.empty();
    const size_t neighbours = listed ? column_place(options_.neighbours, names, options_.nodes) : 0;
    std::vector<std::map<std::string, uint32_t>> values(categories.size());
    std::vector<std::vector<uint32_t>> value_of(categories.size());
    sums_.names = options_.numbers;
    sums_.values.resize(numbers.size());
    std::vector<std::pair<uint32_t, std::string>> named;  // neighbours that may come later
    std::vector<std::string> places;
    for (FieldSpan fields; table.next(fields);) {
      const auto node = static_cast<uint32_t>(nodes_.size());
      if (node + 1 >= kMaxCount) table.fail("more than 2^31 - 1 nodes");
      if (fields[id].empty()) table.fail("the node has no name in the column " + quoted(std::string_view(options_.id)));
      if (fields[id].find(kBetweenNeighbours) != std::string_view::npos)
        table.fail("the name of the node has a |, which separates the names of neighbours");
      if (nodes_.insert(fields[id]) != node) table.fail("the node " + quoted(fields[id]) + " is there twice");
      for (size_t i = 0; i < numbers.size(); ++i) sums_.values[i].push_back(number(table, fields[numbers[i]], names[numbers[i]]));
      for (size_t i = 0; i < categories.size(); ++i) {
        const auto [value, fresh] = values[i].try_emplace(std::string(fields[categories[i]]), values[i].size());
        if (fresh && values[i].size() > kMostValues)
          table.fail("the column " + quoted(std::string_view(names[categories[i]])) + " has more than " +
                     std::to_string(kMostValues) + " values, and each adds columns: leave it out of --categories");
        value_of[i].push_back(value->second);
      }
      if (!listed) continue;
      for_each_part(fields[neighbours], kBetweenNeighbours, [&](std::string_view name) {
        named.emplace_back(node, name);
        places.push_back(std::to_string(table.line()));
      });
    }
    for (size_t i = 0; i < categories.size(); ++i)
      for (const auto& [name, number] : values[i]) {
        sums_.names.push_back(options_.categories[i] + ":" + name);
        std::vector<float>& of = sums_.values.emplace_back();
        for (const uint32_t value : value_of[i]) of.push_back(value == number ? 1 : 0);
      }
    for (size_t i = 0; i < named.size(); ++i) {
      const uint32_t other = nodes_.find(named[i].second);
      if (other == StringTable::kNone)
        throw FormatError(options_.nodes.string() + ":" + places[i] + ": the neighbour " +
                          quoted(std::string_view(named[i].second)) + " is no node of the table");
      add_edge(named[i].first, other);
    }
  }

  static float number(const CsvReader& table, std::string_view text, const std::string& column) {
    if (is_missing_number(text)) return NAN;
    double value = 0;
    const auto [end, error] = parse_double(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(static_cast<float>(value)))
      table.fail("column " + quoted(std::string_view(column)) + ": expected a number, or nothing if it is missing, found " +
                 quoted(text));
    return static_cast<float>(value);
  }

  void read_edges() {
    std::vector<std::string> names;
    CsvReader table = open(options_.edges, names);
    if (names.size() < 2)
      throw FormatError(options_.edges.string() + ": has one column; the first two are the nodes of an edge. Is the delimiter right?");
    if (names.size() > 2 && is_json_lines(options_.edges))  // its keys have no order
      throw FormatError(options_.edges.string() + ": has " + std::to_string(names.size()) +
                        " keys; an edge in JSON Lines has two, which name its nodes");
    for (FieldSpan fields; table.next(fields);) {
      std::array<uint32_t, 2> nodes{};
      for (size_t end = 0; end < 2; ++end) {
        nodes[end] = nodes_.find(fields[end]);
        if (nodes[end] == StringTable::kNone)
          table.fail("the node " + quoted(fields[end]) + " is not in " + options_.nodes.string());
      }
      add_edge(nodes[0], nodes[1]);
    }
  }

  void add_edge(uint32_t a, uint32_t b) {
    if (a == b) return;
    ends_.emplace_back(a, b);
    ends_.emplace_back(b, a);
  }

  void sort_edges() {
    std::ranges::sort(ends_);
    ends_.erase(std::unique(ends_.begin(), ends_.end()), ends_.end());
    first_.assign(nodes_.size() + 1, 0);
    for (const auto& [from, to] : ends_) ++first_[from + 1];
    for (size_t node = 0; node < nodes_.size(); ++node) first_[node + 1] += first_[node];
  }

  std::span<const std::pair<uint32_t, uint32_t>> of(size_t node) const {
    return std::span(ends_).subspan(first_[node], first_[node + 1] - first_[node]);
  }

  void add_up() {
    for (size_t column = 0; column < sums_.values.size(); ++column) {
      const std::vector<float>& values = sums_.values[column];
      // What a node says of itself: its value and whether it has one. near: the sum over its neighbours.
      std::vector<Sum> own(values.size()), near(values.size()), far(values.size());
      for (size_t node = 0; node < values.size(); ++node)
        if (!std::isnan(values[node])) own[node] = {double{values[node]}, 1};
      for (size_t node = 0; node < values.size(); ++node)
        for (const auto& [from, to] : of(node)) near[node] = near[node] + own[to];
      add_columns(column, 1, near);
      if (options_.hops < 2) continue;
      for (size_t node = 0; node < values.size(); ++node)
        for (const auto& [from, to] : of(node)) far[node] = far[node] + near[to] - own[node];
      add_columns(column, 2, far);
    }
  }

  struct Sum {
    double value = 0, count = 0;
    Sum operator+(const Sum& other) const { return {value + other.value, count + other.count}; }
    Sum operator-(const Sum& other) const { return {value - other.value, count - other.count}; }
  };
  void add_columns(size_t column, int hop, const std::vector<Sum>& sums) {
    for (const char* kind : {".sum", ".mean"}) headings_.push_back(sums_.names[column] + kind + std::to_string(hop));
    columns_.push_back(sums);
  }

  // The table once more: what was read of it is not all of it.
  void write_nodes(const std::function<void(std::string_view)>& write) {
    std::vector<std::string> names;
    CsvReader table = open(options_.nodes, names);
    const char delimiter = options_.dialect.delimiter;
    std::string line;
    headings_.insert(headings_.begin(), {"neighbours", "degree"});
    if (options_.edges.empty()) headings_.erase(headings_.begin());  // they are there
    for (const std::string& heading : headings_)
      if (std::ranges::count(names, heading) > 0)
        throw UsageError(options_.nodes.string() + ": has a column " + quoted(std::string_view(heading)) + " already; rename it");
    const bool json = is_json_lines(options_.nodes);
    std::optional<LineReader> lines;  // of JSON, whose values stay as they are
    if (json) lines.emplace(options_.nodes);
    const auto write_object = [&](std::span<const std::string> more) {
      std::string_view text;
      while (lines->next(text) && text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      nlohmann::ordered_json object = nlohmann::ordered_json::parse(text);
      for (size_t i = 0; i < more.size(); ++i)
        if (headings_[i] == "neighbours")
          object[headings_[i]] = more[i];
        else if (!more[i].empty())
          object[headings_[i]] = nlohmann::ordered_json::parse(more[i]);  // a number; its digits stay
      write(object.dump() + '\n');
    };
    const auto write_line = [&](FieldSpan fields, std::span<const std::string> more) {
      line.clear();
      for (size_t i = 0; i < fields.size(); ++i) {
        if (i > 0) line += delimiter;
        append_field(fields[i], options_.dialect, line);
      }
      for (const std::string& field : more) {
        line += delimiter;
        append_field(field, options_.dialect, line);
      }
      line += '\n';
      write(line);
    };
    if (!json) write_line(std::vector<std::string_view>(names.begin(), names.end()), headings_);
    std::vector<std::string> more;
    size_t node = 0;
    for (FieldSpan fields; table.next(fields); ++node) {
      if (node == nodes_.size()) table.fail("the file has grown while it was read");
      more.clear();
      if (!options_.edges.empty()) {
        std::string& list = more.emplace_back();
        for (const auto& [from, to] : of(node)) (list += list.empty() ? "" : "|") += nodes_.at(to);
      }
      more.push_back(std::to_string(of(node).size()));
      for (const std::vector<Sum>& column : columns_) {
        more.push_back(text_of(column[node].value));
        more.push_back(column[node].count > 0 ? text_of(column[node].value / column[node].count) : "");
      }
      if (json)
        write_object(more);
      else
        write_line(fields, more);
    }
    if (node != nodes_.size()) throw FormatError(options_.nodes.string() + ": has become shorter while it was read");
  }

  const GraphOptions& options_;
  StringTable nodes_;
  std::vector<std::pair<uint32_t, uint32_t>> ends_;  // each edge from both ends, ascending
  std::vector<size_t> first_;                        // [nodes + 1] in ends_
  GraphColumns sums_;
  std::vector<std::string> headings_;
  std::vector<std::vector<Sum>> columns_;  // of the headings, two each: [nodes]
};

}  // namespace

GraphCounts write_graph_table(const GraphOptions& options, const std::function<void(std::string_view)>& write) {
  return GraphTable(options).write(write);
}

}  // namespace modelet::shard
