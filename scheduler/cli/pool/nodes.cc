#include "scheduler/cli/pool/nodes.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "scheduler/cli/options/output.h"
#include "scheduler/cli/pool/pool_options.h"
#include "scheduler/client/pool_client.h"
#include "scheduler/core/status_json.h"
#include "scheduler/plan/bytes_text.h"

namespace modelet::cli {
namespace {

using comm::control::NodeStatusT;

std::string work_text(const NodeStatusT& node) {
  const std::string run = node.run == 0 ? "free" : std::to_string(node.run);
  if (!node.draining) return run;
  return node.run == 0 ? "drained" : run + ", drains";
}

void print_nodes(const comm::control::NodeListT& list, bool as_json) {
  if (as_json) {
    for (const auto& node : list.nodes) print_line(scheduler::to_json(*node));
    return;
  }
  Table table({{"node", 9, false, 12},
               {"cores", 5},
               {"memory", 3},
               {"GFLOP/s", 4},
               {"GB/s", 2},
               {"run", 8, false},
               {"step", 7},
               {"compute/step", 1},
               {"waiting", 6},
               {"version", 0}});
  for (const auto& node : list.nodes) {
    const bool measured = node->compute_seconds > 0;
    table.add({node->name, std::to_string(node->cores), scheduler::bytes_text(node->memory_bytes),
               fmt::format("{:.0f}", node->gflops), fmt::format("{:.1f}", node->memory_gbps),
               work_text(*node), std::to_string(node->step),
               measured ? fmt::format("{:.2f} ms", 1e3 * node->compute_seconds) : "-",
               measured ? fmt::format("{:.0f} %", 100 * node->wait_share) : "-", node->version});
  }
  print(table);
}

void list_nodes(const PoolOptions& options) {
  print_nodes(PoolClient(options.address()).nodes(), options.json);
}

void drain(const PoolOptions& options) {
  print_nodes(PoolClient(options.address()).drain(options.node, !options.undo), options.json);
}

}  // namespace

void add_node_verbs(CLI::App& app) {
  add_verb(app, "nodes", "List the nodes of a pool", "  modelet nodes --json",
           std::make_shared<PoolOptions>(), list_nodes);
  const auto drained = std::make_shared<PoolOptions>();
  CLI::App& verb =
      add_verb(app, "drain",
               "Let runs go on without a node, which gets no work until --undo; in a pool with keys only an "
               "administrator's may do this",
               "  modelet drain alpha\n  modelet drain alpha --undo", drained, drain);
  verb.add_option("node", drained->node, "name of the node")->required();
  verb.add_flag("--undo", drained->undo, "it may work again");
}

}  // namespace modelet::cli
