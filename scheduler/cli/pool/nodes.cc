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

using comm::control::NodeState;
using comm::control::NodeStatusT;

// "40 s", "3 min", "2 h".
std::string age_text(double seconds) {
  constexpr double kMinute = 60, kHour = 3600;
  if (seconds < 2 * kMinute) return fmt::format("{:.0f} s", seconds);
  if (seconds < 2 * kHour) return fmt::format("{:.0f} min", seconds / kMinute);
  return fmt::format("{:.0f} h", seconds / kHour);
}

std::string state_cell(const NodeStatusT& node) {
  if (node.state == NodeState::Training) return fmt::format("training {}", node.run);
  if (node.state == NodeState::Draining) return fmt::format("drains {}", node.run);
  const bool has_begun = node.state == NodeState::Lost || node.state == NodeState::Pending;
  return std::string(scheduler::state_name(node.state)) + (has_begun ? " " + age_text(node.state_seconds) : "");
}

// The state says enough of a node that works or waits for work.
std::string reason_cell(const NodeStatusT& node) {
  std::string text = node.suspended.empty() ? "" : "its owner comes first: " + node.suspended;
  if (node.state != NodeState::Training && node.state != NodeState::Free)
    text += (text.empty() ? "" : "; ") + node.why;
  return text;
}

void print_pending(const comm::control::NodeListT& list) {
  Table table({{"node", 9, false, 12}, {"address", 3, false}, {"key", 8, false}, {"waits", 4}, {"reason", 0, false}});
  for (const auto& node : list.nodes)
    table.add({node->name, node->address, comm::fingerprint(node->key), age_text(node->state_seconds), node->why});
  print(table);
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
               {"state", 8, false},
               {"step", 7},
               {"compute/step", 1},
               {"waiting", 6},
               {"disk free", 2},
               {"address", 1, false},
               {"private data", 1, false, 12},
               {"version", 0},
               {"reason", 6, false, 20}});
  for (const auto& node : list.nodes) {
    const bool measured = node->compute_seconds > 0;
    table.add({node->name, std::to_string(node->cores), scheduler::bytes_text(node->memory_bytes),
               fmt::format("{:.0f}", node->gflops), fmt::format("{:.1f}", node->memory_gbps),
               state_cell(*node), std::to_string(node->step),
               measured ? fmt::format("{:.2f} ms", 1e3 * node->compute_seconds) : "-",
               measured ? fmt::format("{:.0f} %", 100 * node->wait_share) : "-",
               node->disk_free_bytes == 0 ? "-" : scheduler::bytes_text(node->disk_free_bytes),
               node->address.empty() ? "-" : node->address,
               node->private_data.empty() ? "-" : fmt::format("{}", fmt::join(node->private_data, ", ")), node->version, reason_cell(*node)});
  }
  print(table);
}

void list_nodes(const PoolOptions& options) {
  comm::control::NodeListT list = PoolClient(options.address()).nodes(true);
  if (options.pending)
    std::erase_if(list.nodes, [](const auto& node) { return node->state != NodeState::Pending; });
  if (options.pending && !options.json) return print_pending(list);
  print_nodes(list, options.json);
}

void drain(const PoolOptions& options) {
  print_nodes(PoolClient(options.address()).drain(options.node, !options.undo), options.json);
}

void approve(const PoolOptions& options) {
  print_nodes(PoolClient(options.address()).approve(options.node), options.json);
}

}  // namespace

void add_node_verbs(CLI::App& app) {
  const auto listed = std::make_shared<PoolOptions>();
  CLI::App& nodes_verb = add_verb(app, "nodes",
                                  "List the nodes of a pool: those that are there, those that were lost within a day, and "
                                  "agents that wait to be let in",
                                  "  modelet nodes --json\n  modelet nodes --pending       who waits, and with which key",
                                  listed, list_nodes);
  nodes_verb.add_flag("--pending", listed->pending, "only agents that wait to be let in, with their keys");
  const auto approved = std::make_shared<PoolOptions>();
  CLI::App& approve_verb = add_verb(
      app, "approve",
      "Let an agent in that waits because the scheduler does not know its key; only an administrator's key may do this. "
      "Compare the key with what 'modelet key FILE' prints on its machine",
      "  modelet approve alpha\n  modelet approve 5c02e8a9b1d04f37", approved, approve);
  approve_verb.add_option("node", approved->node, "name of the agent, or the beginning of its key (16 digits)")->required();
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
