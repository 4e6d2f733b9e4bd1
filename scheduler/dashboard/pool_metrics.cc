#include "scheduler/dashboard/pool_metrics.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "base/version.h"
#include "scheduler/core/run/run.h"
#include "scheduler/core/status_json.h"

namespace modelet::scheduler {
namespace {

using comm::control::NodeState;
using comm::control::NodeStatusT;
using comm::control::RunState;
using comm::control::RunStatusT;
using comm::http::MetricsText;

bool is_there(const NodeStatusT& node) {
  return node.state != NodeState::Lost && node.state != NodeState::Pending;
}

double number(uint64_t value) { return static_cast<double>(value); }

void write_pool(const PoolState& state, MetricsText& text) {
  const PoolFacts& facts = state.facts;
  text.begin("modelet_info", "gauge", "The program that shows the pool.");
  text.sample({{"version", kVersion}, {"address", facts.address}}, 1);
  std::map<std::string_view, double> nodes;
  for (const NodeState each : comm::control::EnumValuesNodeState()) nodes[state_name(each)] = 0;
  for (const NodeStatusT& node : state.nodes) ++nodes[state_name(node.state)];
  text.begin("modelet_nodes", "gauge", "Nodes, by state; lost ones for a day.");
  for (const auto& [name, count] : nodes) text.sample({{"state", name}}, count);
  text.counter("modelet_node_losses_total", "Nodes that stopped answering.", number(facts.losses));
  text.counter("modelet_messages_refused_total",
               "Messages that were refused, for lack of rights or room or sense.", number(facts.refused));
  text.counter("modelet_keys_refused_total", "Of these, messages with a key that the scheduler does not know.",
               number(facts.refused_keys));
  text.counter("modelet_errors_total", "Events that the scheduler could not handle.", number(facts.errors));
  text.gauge("modelet_store_bytes", "Files of runs in the scheduler's store.", number(facts.store_bytes));
  text.gauge("modelet_store_limit_bytes", "The limit of the store; 0: there is none.",
             number(facts.store_most_bytes));
  std::map<std::string_view, double> runs;
  for (RunState each = RunState::Queued; each <= RunState::Waiting;
       each = static_cast<RunState>(static_cast<int>(each) + 1))
    runs[state_name(each)] = 0;
  double longest_wait = 0;
  for (const RunStatusT& run : state.runs) {
    ++runs[state_name(run.state)];
    if (run.state == RunState::Queued) longest_wait = std::max(longest_wait, run.seconds);
  }
  text.begin("modelet_runs", "gauge", "Runs that the scheduler knows, by state.");
  for (const auto& [name, count] : runs) text.sample({{"state", name}}, count);
  text.gauge("modelet_queue_longest_wait_seconds", "How long the run has waited that waits longest.",
             longest_wait);
}

void write_nodes(const PoolState& state, MetricsText& text) {
  const auto of_each = [&](const char* name, const char* help, auto value, const char* type = "gauge") {
    text.begin(name, type, help);
    for (const NodeStatusT& node : state.nodes)
      if (is_there(node)) text.sample({{"node", node.name}}, value(node));
  };
  of_each("modelet_node_silent_seconds", "Seconds since the last message of the node.",
          [](const NodeStatusT& node) { return node.silent_seconds; });
  of_each("modelet_node_cores", "Cores that the node offers.",
          [](const NodeStatusT& node) { return static_cast<double>(node.cores); });
  of_each("modelet_node_memory_bytes", "Memory that the node offers.",
          [](const NodeStatusT& node) { return number(node.memory_bytes); });
  of_each("modelet_node_disk_free_bytes", "Free bytes where the node keeps its files; 0: not known.",
          [](const NodeStatusT& node) { return number(node.disk_free_bytes); });
  of_each("modelet_node_sent_bytes_total", "Sent for runs to other machines, since the agent started.",
          [](const NodeStatusT& node) { return number(node.sent_bytes); }, "counter");
  of_each("modelet_node_received_bytes_total", "Received for runs, since the agent started.",
          [](const NodeStatusT& node) { return number(node.received_bytes); }, "counter");
  text.begin("modelet_node_suspended", "gauge", "Why the node works with fewer threads than it offers, or with none.");
  for (const NodeStatusT& node : state.nodes)
    if (is_there(node) && !node.suspended.empty()) text.sample({{"node", node.name}, {"reason", node.suspended}}, 1);
  text.begin("modelet_node_lost_seconds", "gauge", "Since a node that is missing was lost.");
  for (const NodeStatusT& node : state.nodes)
    if (node.state == NodeState::Lost) text.sample({{"node", node.name}}, node.state_seconds);
  text.begin("modelet_node_run", "gauge", "The run that the node works for.");
  for (const NodeStatusT& node : state.nodes)
    if (node.run != 0) text.sample({{"node", node.name}, {"run", std::to_string(node.run)}}, 1);
  text.begin("modelet_node_step_seconds", "gauge",
             "Where the time of a step goes on the node, as its run has reported last.");
  for (const NodeStatusT& node : state.nodes) {
    if (node.run == 0) continue;
    text.sample({{"node", node.name}, {"phase", "compute"}}, node.compute_seconds);
    text.sample({{"node", node.name}, {"phase", "codec"}}, node.codec_seconds);
    text.sample({{"node", node.name}, {"phase", "wait"}}, node.wait_seconds);
  }
}

void write_runs(const PoolState& state, MetricsText& text) {
  const auto of_each = [&](const char* name, const char* type, const char* help, auto value) {
    text.begin(name, type, help);
    for (const RunStatusT& run : state.runs)
      if (!has_ended(run.state))
        text.sample({{"run", std::to_string(run.run)}, {"name", run.name}}, value(run));
  };
  text.begin("modelet_run_state", "gauge", "The state of each run that has not ended.");
  for (const RunStatusT& run : state.runs)
    if (!has_ended(run.state))
      text.sample({{"run", std::to_string(run.run)}, {"name", run.name}, {"state", state_name(run.state)}},
                  1);
  of_each("modelet_run_nodes", "gauge", "Nodes that work for the run.",
          [](const RunStatusT& run) { return number(run.node_names.size()); });
  of_each("modelet_run_step", "gauge", "Steps that are done.",
          [](const RunStatusT& run) { return number(run.step); });
  of_each("modelet_run_steps", "gauge", "Steps of the whole run; 0: not known yet.",
          [](const RunStatusT& run) { return number(run.steps); });
  of_each("modelet_run_samples_per_second", "gauge", "Rate of the run; 0: it does not run now.",
          [](const RunStatusT& run) { return run.samples_per_second; });
  of_each("modelet_run_loss", "gauge", "Loss, as reported last.",
          [](const RunStatusT& run) { return run.loss; });
  of_each("modelet_run_seconds_left", "gauge", "Until the run ends; 0: not known.",
          [](const RunStatusT& run) { return run.seconds_left; });
  of_each("modelet_run_sent_bytes_per_step", "gauge", "Bytes that its first node sends in a step.",
          [](const RunStatusT& run) { return run.bytes_per_step; });
  of_each("modelet_run_recoveries_total", "counter", "How often the run lost nodes and went on.",
          [](const RunStatusT& run) { return static_cast<double>(run.recoveries); });
  of_each("modelet_run_replans_total", "counter", "How often its modelets were placed anew.",
          [](const RunStatusT& run) { return static_cast<double>(run.replans); });
  of_each("modelet_run_repeated_steps_total", "counter", "Steps that were done again after recoveries.",
          [](const RunStatusT& run) { return number(run.repeated_steps); });
  text.begin("modelet_run_stable_age_seconds", "gauge",
             "Age of the snapshot from which the run goes on if a node is lost.");
  for (const RunStatusT& run : state.runs)
    if (!has_ended(run.state) && run.stable_step > 0)
      text.sample({{"run", std::to_string(run.run)}, {"name", run.name}}, run.stable_seconds);
}

}  // namespace

void write_metrics(const PoolState& state, MetricsText& text) {
  write_pool(state, text);
  write_nodes(state, text);
  write_runs(state, text);
}

}  // namespace modelet::scheduler
