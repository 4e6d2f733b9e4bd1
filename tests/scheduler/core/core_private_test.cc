// Runs whose data stays with its owners: which nodes they take, and what becomes of them when an owner is lost.
#include "tests/scheduler/core/recovery_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;
using testing::HasSubstr;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

class PrivateTest : public RecoveryTest {
 protected:
  void join_owner(const std::string& name, uint64_t incarnation = 1, const Names& data = {"clinic"},
                  uint64_t works_for = 0, uint32_t epoch = 0) {
    msg::RegisterT info = registration(name, incarnation);
    info.run = works_for;
    info.epoch = epoch;
    info.holder_endpoint = "tcp://" + name + ":9";
    info.private_data = data;
    pool.receive(name, info);
  }
  static msg::SubmitT submission_of_owners(uint32_t owners, uint32_t nodes = 0, uint32_t least = 0) {
    msg::SubmitT submit = submission(nodes);
    Experiment experiment = parse_experiment(submit.experiment, "test");
    experiment.data.train = "private:clinic";
    experiment.cluster.replicas = owners;
    experiment.cluster.epoch_steps = 100;
    experiment.cluster.least_owners = least;
    submit.experiment = to_toml(experiment);
    return submit;
  }
  // An owner is lost.
  void lose(const std::string& name, const Names& others, uint64_t step) {
    pass(1, others, step);
    pool.receive(name, msg::LeaveT{});
    pass(1, others, step);
  }
  // How many owners the newest group is told to be.
  uint32_t owners_of_group() {
    return parse_experiment(prepares.begin()->second.experiment, "test").cluster.replicas;
  }
  // The first rank reports a step in each second.
  void report(int seconds, const Names& alive, double seconds_left) {
    for (int i = 0; i < seconds; ++i) {
      pass(1, alive, 15);
      const Names members = status().node_names;
      msg::RunEventT event = progress(run, std::vector<double>(members.size(), 1), seconds_left);
      event.epoch = status().epoch;
      pool.receive(members[0], event);
    }
  }
  std::string refusal(const msg::SubmitT& submit) {
    pool.receive("client", submit);
    const auto refused = pool.take<msg::RefusedT>("client");
    return refused.empty() ? "accepted" : refused.back().reason;
  }
};

TEST_F(PrivateTest, OnlyOwnersWork) {
  join("fast");
  join_owner("a");
  join_owner("b", 1, {"other", "clinic"});
  join_owner("c", 1, {"other"});
  join_owner("d");
  begin(submission_of_owners(3));
  EXPECT_THAT(status().node_names, UnorderedElementsAre("a", "b", "d"));
  for (const auto& [name, prepare] : prepares) {
    EXPECT_EQ(prepare.train_data, "");
    for (const uint32_t rank : prepare.owner) EXPECT_EQ(rank, 0u) << "each has the whole model";
  }
  EXPECT_THAT(pool.node("b").private_data, ElementsAre("other", "clinic"));
}

TEST_F(PrivateTest, TheRunWaitsForOwnersAndHoldsUpNobody) {
  for (const char* name : {"x", "y", "z"}) join(name);
  join_owner("a");
  pool.receive("client", submission_of_owners(2));
  const uint64_t waiting = pool.take<msg::AcceptedT>("client").at(0).run;
  EXPECT_THAT(pool.run(waiting).detail,
              HasSubstr("needs 2 nodes with private data 'clinic' (modelet-agent --private): the pool has 1, of which 1"));
  pool.receive("client", submission(2));
  EXPECT_EQ(pool.run(pool.take<msg::AcceptedT>("client").at(0).run).state, RunState::Forming);
  join_owner("b");
  EXPECT_EQ(pool.run(waiting).state, RunState::Forming);
}

// What an owner would teach the run, no other node can, even if it has data of the same name.
TEST_F(PrivateTest, ALostOwnerIsNotReplaced) {
  for (const char* name : {"a", "b", "c"}) join_owner(name);
  begin(submission_of_owners(3));
  join_owner("spare");
  snapshot(10);
  pool.receive("b", msg::LeaveT{});
  for (const char* name : {"a", "c"}) pool.receive(name, done(run, Outcome::Failed, 12, "lost", status().epoch));
  pass(2, {"a", "c", "spare"}, 12);
  EXPECT_EQ(status().state, RunState::Waiting) << status().detail;
  join_owner("b", 2);
  pass(1, {"a", "b", "c", "spare"}, 0);
  EXPECT_EQ(status().state, RunState::Forming) << status().detail;
  EXPECT_THAT(status().node_names, UnorderedElementsAre("a", "b", "c"));
}

// A round is of the owners that are there. One that comes back takes part from the step at which the others are then.
TEST_F(PrivateTest, TheOthersGoOnAndTakeAnOwnerBack) {
  for (const char* name : {"a", "b", "c"}) join_owner(name);
  begin(submission_of_owners(3, 0, 2));
  join_owner("spare");
  snapshot(10);
  lose("b", {"a", "c", "spare"}, 14);
  EXPECT_THAT(status().node_names, ElementsAre("a", "c"));
  get_ready({"a", "c"});
  EXPECT_EQ(owners_of_group(), 2u);
  EXPECT_EQ(prepares["a"].snapshot->step, 10u) << "what was learned with the lost owner after that is learned anew";
  EXPECT_THAT(status().detail, HasSubstr("goes on with 2 of 3 nodes"));
  report(5, {"a", "c", "spare"}, 1000);
  EXPECT_TRUE(pool.take<msg::StopT>("a").empty()) << "the spare node's data is not that of the lost owner";

  // The next scheduler knows who took part.
  pool.restart();
  pool.inbox.clear();
  for (const char* name : {"a", "c"}) join_owner(name, 1, {"clinic"}, run, 2);
  join_owner("spare");
  join_owner("b", 2);
  report(1, {"a", "b", "c", "spare"}, 0);
  EXPECT_TRUE(pool.take<msg::StopT>("a").empty()) << "nearly done";
  report(1, {"a", "b", "c", "spare"}, 1000);
  EXPECT_EQ(pool.take<msg::StopT>("a").size(), 1u);
  EXPECT_THAT(status().detail, HasSubstr("1 of 3 owners take part again: 'b'"));
  snapshot(20, true);
  all_done(Outcome::Interrupted, 20);
  EXPECT_THAT(status().node_names, ElementsAre("a", "b", "c"));
  get_ready({"a", "b", "c"});
  EXPECT_EQ(owners_of_group(), 3u);
  for (const auto& [name, prepare] : prepares) EXPECT_EQ(prepare.snapshot->step, 20u) << name;
  EXPECT_EQ(status().repeated_steps, 4u);
}

TEST_F(PrivateTest, TooFewOwnersAreWaitedFor) {
  for (const char* name : {"a", "b", "c", "d"}) join_owner(name);
  begin(submission_of_owners(4, 0, 3));
  snapshot(10);
  lose("b", {"a", "c", "d"}, 12);
  get_ready({"a", "c", "d"});
  lose("d", {"a", "c"}, 13);
  for (const char* name : {"a", "c"}) pool.receive(name, done(run, Outcome::Failed, 13, "was told to end", status().epoch));
  EXPECT_EQ(status().state, RunState::Waiting) << status().detail;
  // The one that comes back need not be the one that was lost last.
  join_owner("b", 2);
  pass(1, {"a", "b", "c"}, 0);
  get_ready({"a", "b", "c"});
  EXPECT_EQ(owners_of_group(), 3u);
}

TEST_F(PrivateTest, WhatCannotBeIsRefused) {
  for (const char* name : {"a", "b", "c"}) join_owner(name);
  EXPECT_THAT(refusal(submission_of_owners(1)), HasSubstr("cluster.replicas must be the number of owners"));
  EXPECT_THAT(refusal(submission_of_owners(2, 4)), HasSubstr("each of the 2 owners (cluster.replicas) is one node"));
  msg::SubmitT submit = submission_of_owners(2);
  submit.train_data = comm::to_text(comm::ContentId{});
  EXPECT_THAT(refusal(submit), HasSubstr("private data must stay with its owners"));
  submit = submission_of_owners(4);
  submit.wait = false;
  join("d");
  EXPECT_THAT(refusal(submit), HasSubstr("give --wait"));
  EXPECT_THAT(refusal(submission_of_owners(3, 0, 1)), HasSubstr("a round needs at least 2 owners"));
  EXPECT_THAT(refusal(submission_of_owners(3, 0, 4)), HasSubstr("there are 3"));
  submit = submission_of_owners(2);
  Experiment experiment = parse_experiment(submit.experiment, "test");
  experiment.cluster.epoch_steps = 0;
  submit.experiment = to_toml(experiment);
  EXPECT_THAT(refusal(submit), HasSubstr("cluster.epoch_steps must say"));
  msg::RegisterT odd = registration("odd");
  odd.private_data = {"/data/notes.txt"};
  pool.receive("odd", odd);
  EXPECT_THAT(pool.take<msg::RefusedT>("odd").at(0).reason, HasSubstr("names of private data"));
  odd.private_data.assign(65, "x");
  pool.receive("odd", odd);
  EXPECT_THAT(pool.take<msg::RefusedT>("odd").at(0).reason, HasSubstr("at most 64"));
}

}  // namespace
}  // namespace modelet::scheduler::test
