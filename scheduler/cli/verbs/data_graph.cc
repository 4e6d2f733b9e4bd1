// modelet data graph: a table of nodes, with columns that say what their neighbours are like.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/system/file.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/cli/options/output.h"
#include "scheduler/cli/verbs/data.h"
#include "shard/data/encode/graph_table.h"
#include "shard/data/encode/guess.h"
#include "shard/data/read/json_lines.h"

namespace modelet::cli {
namespace {

struct GraphVerbOptions {
  std::string nodes, out, edges, id = "id", neighbours;
  std::vector<std::string> targets;
  uint32_t hops = 2;
  bool force = false, json = false;
};

void graph(const GraphVerbOptions& given) {
  require_writable(given.out, given.force, {given.nodes, given.edges});
  Experiment::Csv csv;
  if (!shard::is_json_lines(std::filesystem::path(given.nodes))) csv.delimiter = shard::guess_delimiter(given.nodes);
  shard::GraphOptions options{.nodes = given.nodes,
                              .edges = given.edges,
                              .dialect = shard::csv_dialect(csv),
                              .id = given.id,
                              .neighbours = given.neighbours,
                              .hops = given.hops};
  ColumnUses known;
  std::vector<std::string> left_out = given.targets;
  left_out.push_back(given.id);
  if (!given.neighbours.empty()) left_out.push_back(given.neighbours);
  for (const std::string& name : left_out) known[name] = {.type = ColumnType::kTarget};
  constexpr uint64_t kMostValues = 50;  // of a category whose values are added up
  for (const shard::GuessedColumn& column : shard::guess_columns(given.nodes, csv, known, {}).columns) {
    const ColumnUse& use = column.use;
    if (use.type == ColumnType::kNumber) options.numbers.push_back(column.name);
    if (use.type == ColumnType::kCategory && use.separator == Delimiter::kNone && column.distinct <= kMostValues)
      options.categories.push_back(column.name);
  }
  AtomicFile file(given.out, given.force ? Existing::kReplace : Existing::kKeep);
  std::string waiting;  // written many lines at once
  constexpr size_t kAtOnce = 64 << 10;
  const shard::GraphCounts counts = shard::write_graph_table(options, [&](std::string_view line) {
    waiting += line;
    if (waiting.size() < kAtOnce) return;
    file.write(waiting);
    waiting.clear();
  });
  file.write(waiting);
  file.commit();
  if (given.json)
    return print_line(nlohmann::ordered_json{{"event", "graph"},
                                             {"file", given.out},
                                             {"nodes", counts.nodes},
                                             {"edges", counts.edges},
                                             {"columns", counts.columns}});
  std::cout << given.out << ": " << counts.nodes << " nodes, " << counts.edges << " edges, " << counts.columns
            << " new columns\n";
}

}  // namespace

void add_graph(CLI::App& data) {
  const auto options = std::make_shared<GraphVerbOptions>();
  CLI::App* verb = data.add_subcommand("graph", "Add columns to a table of nodes that say what their neighbours are like");
  verb->footer(
      "NODES and EDGES are tables (CSV with a header, or JSON Lines; plain, .xz or .gz); the first two columns of EDGES are names of nodes.\n"
      "OUT has the neighbours of each node, how many they are, and the sums and means of their numbers and categories,\n"
      "over one and two hops. Columns of labels are not added up; name them all with --target.\n\n"
      "Examples:\n"
      "  modelet data graph accounts.csv with-neighbours.csv --edges transfers.csv --target fraud\n"
      "  modelet data graph pages.csv out.csv --id page --neighbours links --target topic");
  verb->add_option("NODES", options->nodes, "table of nodes")->required();
  verb->add_option("OUT", options->out, "table to write")->required();
  CLI::Option* edges = verb->add_option("--edges", options->edges, "table of edges, which have no direction");
  verb->add_option("--neighbours", options->neighbours,
                   "instead of --edges: column of NODES with the names of neighbours, with | between them")
      ->excludes(edges);
  verb->add_option("--id", options->id, "column of the names of nodes")->capture_default_str();
  verb->add_option("--target", options->targets, "column of labels; may be given several times")->required();
  verb->add_option("--hops", options->hops, "1 or 2")->check(CLI::Range(1u, 2u))->capture_default_str();
  add_force_flag(*verb, options->force);
  verb->add_flag("--json", options->json, "JSON Lines on standard output");
  verb->callback([options] {
    if (options->edges.empty() == options->neighbours.empty())
      throw UsageError("give --edges FILE, or --neighbours COLUMN");
    graph(*options);
  });
}

}  // namespace modelet::cli
