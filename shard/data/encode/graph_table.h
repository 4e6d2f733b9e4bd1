// Graphs: a table of nodes, with columns that say what their neighbours are like, so that it can be learned like any
// other table (shard/data/encode/columns_encoder.h). Labels are not read; so a table may be divided into training and
// test data afterwards, and test nodes are neighbours of training nodes (transductive).
//
//   neighbours        names of the neighbours, with | between them
//   degree            how many there are
//   NAME.sum1, NAME.mean1    of the neighbours' values of a column of numbers, and of a column of categories (0 or 1) for each
//                     of its values: NAME:VALUE.sum1; missing values are left out
//   NAME.sum2, NAME.mean2    the same over all ways of two edges that do not come back
//
// Tables are CSV or JSON Lines, and the new one is as that of the nodes.
//
// Edges have no direction; an edge that is there twice counts once, and one from a node to itself not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shard/data/read/csv.h"

namespace modelet::shard {

struct GraphOptions {
  std::filesystem::path nodes, edges;  // tables with headers; without `edges`, nodes have the column `neighbours`
  CsvDialect dialect;
  std::string id;                      // column of nodes with their names
  std::string neighbours;              // column of nodes with the names of their neighbours
  std::vector<std::string> numbers, categories;  // columns whose values are added up
  uint32_t hops = 2;
};

struct GraphCounts {
  uint64_t nodes = 0, edges = 0, columns = 0;
};

// Calls write(line) for the header and each node, in their order, with line ends. FormatError for tables that are not what
// they should be, UsageError for columns that are not there.
GraphCounts write_graph_table(const GraphOptions& options, const std::function<void(std::string_view)>& write);

}  // namespace modelet::shard
