// Columns of neighbours, compared with the plainest way to find them.
#include "shard/data/encode/graph_table.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/rng.h"
#include "tests/error_of.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using ::testing::HasSubstr;

struct GraphFiles {
  testing::TemporaryFolder folder;

  GraphOptions options(const std::string& nodes, const std::string& edges) const {
    std::ofstream(folder / "nodes.csv") << nodes;
    std::ofstream(folder / "edges.csv") << edges;
    return {.nodes = folder / "nodes.csv", .edges = folder / "edges.csv", .id = "id", .numbers = {"n"}, .categories = {"c"}};
  }
};

std::string graph_table(const GraphOptions& options) {
  std::string text;
  write_graph_table(options, [&](std::string_view line) { text += line; });
  return text;
}

// The records by column.
std::vector<std::map<std::string, std::string>> graph_records(const std::string& text) {
  CsvReader csv(LineReader(std::make_unique<std::stringbuf>(text, std::ios::in), "out.csv"), CsvDialect{});
  std::span<const std::string_view> fields;
  csv.next(fields);
  const std::vector<std::string> names(fields.begin(), fields.end());
  std::vector<std::map<std::string, std::string>> records;
  while (csv.next(fields)) {
    auto& record = records.emplace_back();
    for (size_t i = 0; i < names.size(); ++i) record[names[i]] = fields[i];
  }
  return records;
}

TEST(GraphTable, AddsWhatTheNeighboursAre) {
  constexpr uint32_t kNodes = 40;
  Rng rng(1);
  std::string nodes = "label,id,n,c\n", edges = "from,to,weight\n";
  std::vector<float> numbers;
  std::vector<std::string> kinds;
  std::set<std::pair<uint32_t, uint32_t>> joined;
  for (uint32_t node = 0; node < kNodes; ++node) {
    numbers.push_back(rng.below(5) == 0 ? NAN : static_cast<float>(rng.below(100)) / 4);
    kinds.push_back(rng.below(2) == 0 ? "a" : "b, \"quoted\"");
    nodes += "1,n" + std::to_string(node) + "," + (std::isnan(numbers[node]) ? "" : std::to_string(numbers[node])) + "," +
             (kinds[node] == "a" ? "a" : "\"b, \"\"quoted\"\"\"") + "\n";
  }
  for (int edge = 0; edge < 90; ++edge) {
    const uint32_t a = rng.below(kNodes - 1), b = rng.below(kNodes - 1);  // the last node has no neighbour
    edges += "n" + std::to_string(a) + ",n" + std::to_string(b) + ",7\n";
    if (a != b) joined.insert({std::pair(a, b), std::pair(b, a)});
  }
  const GraphFiles files;
  const auto records = graph_records(graph_table(files.options(nodes, edges)));
  ASSERT_EQ(records.size(), kNodes);
  EXPECT_EQ(records[0].size(), 4 + 2 + 3 * 4u) << "columns of nodes, neighbours and degree, sums of n and of the values of c";
  const auto expect_sums = [&](uint32_t node, const std::string& column, const auto& value_of) {
    for (const int hop : {1, 2}) {
      double sum = 0, count = 0;
      const auto add = [&](uint32_t other) {
        const float value = value_of(other);
        if (!std::isnan(value)) sum += value;
        count += std::isnan(value) ? 0 : 1;
      };
      for (const auto& [from, via] : joined) {
        if (from != node) continue;
        if (hop == 1) add(via);
        if (hop == 2)
          for (const auto& [start, to] : joined)
            if (start == via && to != node) add(to);
      }
      const std::string end = std::to_string(hop);
      EXPECT_NEAR(std::stod(records[node].at(column + ".sum" + end)), sum, 1e-4) << node;
      const std::string& mean = records[node].at(column + ".mean" + end);
      ASSERT_EQ(mean.empty(), count == 0) << node;
      if (count > 0) {
        EXPECT_NEAR(std::stod(mean), sum / count, 1e-4) << node;
      }
    }
  };
  for (uint32_t node = 0; node < kNodes; ++node) {
    EXPECT_EQ(records[node].at("id"), "n" + std::to_string(node));
    EXPECT_EQ(records[node].at("c"), kinds[node]);
    std::string neighbours;
    size_t degree = 0;
    for (const auto& [from, to] : joined)
      if (from == node) {
        neighbours += (neighbours.empty() ? "n" : "|n") + std::to_string(to);
        ++degree;
      }
    EXPECT_EQ(records[node].at("neighbours"), neighbours);
    EXPECT_EQ(records[node].at("degree"), std::to_string(degree));
    expect_sums(node, "n", [&](uint32_t other) { return numbers[other]; });
    expect_sums(node, "c:a", [&](uint32_t other) { return kinds[other] == "a" ? 1.0f : 0.0f; });
  }
}

TEST(GraphTable, NeighboursMayBeAColumn) {
  const GraphFiles files;
  const std::string nodes = "id,n,c\nx,1,a\ny,2,a\nz,,b\n";
  auto records = graph_records(graph_table(files.options(nodes, "a,b\nx,y\nz,x\ny,x\n")));
  GraphOptions listed = files.options("id,n,c,with\nx,1,a,y | z\ny,2,a,\nz,,b,\n", "");
  listed.edges.clear();
  listed.neighbours = "with";
  auto others = graph_records(graph_table(listed));
  for (auto& record : records) record.erase("neighbours");
  for (auto& record : others) record.erase("with");
  EXPECT_EQ(others, records);
}

TEST(GraphTable, ErrorsSayWhere) {
  const GraphFiles files;
  const std::string nodes = "id,n,c\nx,1,a\ny,2,a\n";
  const auto error = [&](const std::string& of_nodes, const std::string& edges) {
    return test::error_of([&] { graph_table(files.options(of_nodes, edges)); });
  };
  EXPECT_THAT(error(nodes, "a,b\nx,y\nx,zz\n"), HasSubstr("edges.csv:3: the node 'zz' is not in"));
  EXPECT_THAT(error(nodes + "x,1,a\n", "a,b\n"), HasSubstr("nodes.csv:4: the node 'x' is there twice"));
  EXPECT_THAT(error(nodes + ",1,a\n", "a,b\n"), HasSubstr("nodes.csv:4: the node has no name"));
  EXPECT_THAT(error(nodes + "p|q,1,a\n", "a,b\n"), HasSubstr("has a |"));
  EXPECT_THAT(error("id,n,c\nx,one,a\n", "a,b\n"), HasSubstr("column 'n': expected a number"));
  EXPECT_THAT(error("id,c\nx,a\n", "a,b\n"), HasSubstr("has no column 'n'"));
  EXPECT_THAT(error("id,n,c,degree\nx,1,a,1\n", "a,b\n"), HasSubstr("has a column 'degree' already"));
  EXPECT_THAT(error(nodes, "a\nx\n"), HasSubstr("has one column"));
  EXPECT_THAT(error("", "a,b\n"), HasSubstr("is empty"));
}

// The same graph in both notations has the same columns; what JSON has beside them stays.
TEST(GraphTable, ReadsAndWritesJsonLines) {
  GraphFiles files;
  const auto records = graph_records(graph_table(files.options("id,n,c\nx,1.5,a\ny,,b\nz,4,a\n", "from,to\nx,y\nz,y\n")));
  GraphOptions options = files.options("", "");
  options.nodes = files.folder / "nodes.jsonl";
  options.edges = files.folder / "edges.jsonl";
  std::ofstream(options.nodes) << R"({"n": 1.5, "id": "x", "c": "a", "more": {"deep": [1]}})" << "\n"
                               << R"({"id": "y", "c": "b"})" << "\n\n" << R"({"id": "z", "n": 4, "c": "a"})" << "\n";
  std::ofstream(options.edges) << "{\"from\": \"x\", \"to\": \"y\"}\n{\"from\": \"z\", \"to\": \"y\"}\n";
  std::istringstream lines(graph_table(options));
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(objects.size(), records.size());
  for (size_t node = 0; node < records.size(); ++node)
    for (const auto& [name, value] : records[node]) {
      const nlohmann::json& now = objects[node][name];
      if (now.is_null())
        EXPECT_EQ(value, "") << name;
      else
        EXPECT_EQ(now.is_string() ? now.get<std::string>() : now.dump(), now.is_number_float() ? nlohmann::json::parse(value).dump() : value) << name;
    }
  EXPECT_EQ(objects[0]["more"].dump(), R"({"deep":[1]})");
  // Neighbours as a list.
  std::ofstream(options.nodes) << R"({"id": "x", "n": 1, "c": "a", "near": ["y"]})" << "\n" << R"({"id": "y", "n": 2, "c": "a", "near": []})" << "\n";
  options.edges.clear();
  options.neighbours = "near";
  EXPECT_THAT(graph_table(options), HasSubstr(R"("degree":1)"));
  std::ofstream(files.folder / "three.jsonl") << R"({"from": "x", "to": "y", "weight": 1})" << "\n";
  options.edges = files.folder / "three.jsonl";
  EXPECT_THAT(test::error_of([&] { graph_table(options); }), HasSubstr("has 3 keys"));
}

}  // namespace
}  // namespace modelet::shard
