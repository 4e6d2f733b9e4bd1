#include "scheduler/dashboard/pool_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace modelet::scheduler {
namespace {

using comm::control::NodeState;
using comm::control::NodeStatusT;
using comm::control::RunState;
using comm::control::RunStatusT;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string metrics_of(const PoolState& state) {
  comm::http::MetricsText text;
  write_metrics(state, text);
  return text.take();
}

NodeStatusT node_at_work(const std::string& name, uint64_t run) {
  NodeStatusT node;
  node.name = name;
  node.run = run;
  node.state = run == 0 ? NodeState::Free : NodeState::Training;
  node.silent_seconds = 0.25;
  node.compute_seconds = 0.5;
  node.wait_seconds = 0.125;
  return node;
}

RunStatusT run_in_state(uint64_t number, RunState state) {
  RunStatusT run;
  run.run = number;
  run.name = "deps";
  run.state = state;
  run.step = 17;
  run.seconds = 90;
  return run;
}

TEST(PoolMetrics, NodesByStateAndWhereTheirTimeGoes) {
  PoolState state;
  state.facts.losses = 3;
  state.nodes = {node_at_work("a", 1), node_at_work("b", 0), node_at_work("c", 0)};
  state.nodes[2].state = NodeState::Drained;
  const std::string text = metrics_of(state);
  EXPECT_THAT(text,
              AllOf(HasSubstr("modelet_nodes{state=\"free\"} 1\n"), HasSubstr("{state=\"training\"} 1\n"),
                    HasSubstr("{state=\"drained\"} 1\n"), HasSubstr("{state=\"draining\"} 0\n")))
      << "a state without nodes is 0, not missing";
  EXPECT_THAT(text, HasSubstr("modelet_node_losses_total 3\n"));
  EXPECT_THAT(text, HasSubstr("modelet_node_silent_seconds{node=\"c\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("modelet_node_step_seconds{node=\"a\",phase=\"compute\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("modelet_node_step_seconds{node=\"a\",phase=\"wait\"} 0.125\n"));
  EXPECT_THAT(text, Not(HasSubstr("modelet_node_step_seconds{node=\"b\""))) << "what it did for an ended run";
}

TEST(PoolMetrics, WhatIsWrongWithANode) {
  PoolState state;
  state.facts.refused = 5;
  state.facts.refused_keys = 2;
  state.nodes = {node_at_work("a", 1), node_at_work("gone", 0), node_at_work("new", 0)};
  state.nodes[0].disk_free_bytes = 4096;
  state.nodes[0].sent_bytes = 1000;
  state.nodes[0].received_bytes = 2000;
  state.nodes[0].suspended = "others want the \"CPU\"";
  state.nodes[1].state = NodeState::Lost;
  state.nodes[1].state_seconds = 30;
  state.nodes[2].state = NodeState::Pending;
  const std::string text = metrics_of(state);
  EXPECT_THAT(text, AllOf(HasSubstr("modelet_nodes{state=\"lost\"} 1\n"), HasSubstr("modelet_nodes{state=\"pending\"} 1\n"),
                          HasSubstr("modelet_node_disk_free_bytes{node=\"a\"} 4096\n"),
                          HasSubstr("# TYPE modelet_node_sent_bytes_total counter\n"),
                          HasSubstr("modelet_node_sent_bytes_total{node=\"a\"} 1000\n"),
                          HasSubstr("modelet_node_received_bytes_total{node=\"a\"} 2000\n"),
                          HasSubstr("modelet_node_suspended{node=\"a\",reason=\"others want the \\\"CPU\\\"\"} 1\n"),
                          HasSubstr("modelet_node_lost_seconds{node=\"gone\"} 30\n"),
                          HasSubstr("modelet_messages_refused_total 5\n"), HasSubstr("modelet_keys_refused_total 2\n")));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("cores{node=\"gone\"")), Not(HasSubstr("cores{node=\"new\""))))
      << "they offer nothing now";
}

TEST(PoolMetrics, RunsThatHaveEndedLeaveNoSeries) {
  PoolState state;
  state.runs = {run_in_state(1, RunState::Running), run_in_state(2, RunState::Queued)};
  state.runs[0].stable_step = 10;
  state.runs[0].stable_seconds = 4;
  state.runs[0].loss = 1.5;
  state.runs[0].samples_per_second = 1000;
  state.runs[0].recoveries = 2;
  state.runs[0].repeated_steps = 30;
  std::string text = metrics_of(state);
  EXPECT_THAT(text, AllOf(HasSubstr("modelet_run_state{run=\"1\",name=\"deps\",state=\"running\"} 1\n"),
                          HasSubstr("modelet_run_loss{run=\"1\",name=\"deps\"} 1.5\n"),
                          HasSubstr("modelet_run_samples_per_second{run=\"1\",name=\"deps\"} 1000\n"),
                          HasSubstr("modelet_run_recoveries_total{run=\"1\",name=\"deps\"} 2\n"),
                          HasSubstr("modelet_run_repeated_steps_total{run=\"1\",name=\"deps\"} 30\n"),
                          HasSubstr("modelet_run_stable_age_seconds{run=\"1\",name=\"deps\"} 4\n"),
                          HasSubstr("modelet_queue_longest_wait_seconds 90\n")));
  EXPECT_THAT(text, Not(HasSubstr("stable_age_seconds{run=\"2\""))) << "it has no snapshot";
  for (RunStatusT& run : state.runs) run.state = RunState::Finished;
  text = metrics_of(state);
  EXPECT_THAT(text, AllOf(Not(HasSubstr("run=\"")), HasSubstr("modelet_runs{state=\"finished\"} 2\n")));
}

}  // namespace
}  // namespace modelet::scheduler
