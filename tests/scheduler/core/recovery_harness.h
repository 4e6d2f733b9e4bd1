// A run on agents that hold each other's files. A test tells what happens to them, and looks at the next group.
#pragma once

#include <gmock/gmock.h>

#include "tests/scheduler/core/core_harness.h"

namespace modelet::scheduler::test {

using Names = std::vector<std::string>;

class RecoveryTest : public testing::Test {
 protected:
  void join(const std::string& name, uint64_t incarnation = 1, uint64_t works_for = 0, uint32_t epoch = 0) {
    msg::RegisterT info = registration(name, incarnation);
    info.holder_endpoint = "tcp://" + name + ":9";
    info.run = works_for;
    info.epoch = epoch;
    pool.receive(name, info);
  }
  void start(const Names& names, uint32_t nodes = 0) {
    pool.handle(Tick{});
    for (const std::string& name : names) join(name);
    begin(submission(nodes));
  }
  // The run needs all these nodes, so it waits whenever one of them is missing.
  void start_with_all(const Names& names) {
    for (const std::string& name : names) join(name);
    const auto all = static_cast<uint32_t>(names.size());
    begin(submission_of(all, {.min_nodes = all}));
  }
  static msg::SubmitT submission_of(uint32_t nodes, const Experiment::Cluster& cluster) {
    msg::SubmitT submit = submission(nodes);
    Experiment experiment = parse_experiment(submit.experiment, "test");
    experiment.cluster = cluster;
    submit.experiment = to_toml(experiment);
    return submit;
  }
  void begin(const msg::SubmitT& submit) {
    pool.receive("client", submit);
    run = pool.take<msg::AcceptedT>("client").at(0).run;
    get_ready(pool.run(run).node_names);
    owner = prepares.begin()->second.owner;
  }
  // All members answer Prepare.
  void get_ready(const Names& members) {
    prepares.clear();
    for (const std::string& name : members) {
      const auto got = pool.take<msg::PrepareT>(name);
      ASSERT_FALSE(got.empty()) << name;
      prepares[name] = got.back();
      pool.receive(name, prepared(run, "tcp://" + name + ":1", got.back().epoch));
    }
    ASSERT_EQ(status().state, msg::RunState::Running) << status().detail;
  }
  msg::RunStatusT status() { return pool.run(run); }
  // All ranks report their files. Each file is also held by the next member.
  void snapshot(uint64_t step, bool keep = false) {
    const Names members = status().node_names;
    for (uint32_t rank = 0; rank < members.size(); ++rank)
      pool.receive(members[rank], held(run, status().epoch, step, rank,
                                       {members[rank], members[(rank + 1) % members.size()]}, keep));
  }
  void all_done(msg::Outcome outcome, uint64_t step) {
    for (const std::string& name : status().node_names)
      pool.receive(name, done(run, outcome, step, "", status().epoch));
  }
  void pass(int seconds, const Names& alive, uint64_t step) {
    for (int i = 0; i < seconds; ++i) {
      pool.now += 1;
      for (const std::string& name : alive) beat(name, step);
      pool.handle(Tick{});
    }
  }
  void beat(const std::string& name, uint64_t step) {
    const bool works = pool.node(name).run == run;
    pool.receive(
        name,
        msg::HeartbeatT{{}, 0, works ? run : 0, works ? step : 0, works ? status().epoch : 0, ++heartbeats});
  }

  Harness pool;
  uint64_t run = 0, heartbeats = 0;
  std::vector<uint32_t> owner;
  std::map<std::string, msg::PrepareT> prepares;
};

}  // namespace modelet::scheduler::test
