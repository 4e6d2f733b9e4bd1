// Runs whose data stays with its owners: which nodes they take, and what becomes of them when an owner is lost.
#include "tests/scheduler/core/recovery_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class PrivateTest : public RecoveryTest {
 protected:
  void join_owner(const std::string& name, uint64_t incarnation = 1, const Names& data = {"clinic"}) {
    msg::RegisterT info = registration(name, incarnation);
    info.holder_endpoint = "tcp://" + name + ":9";
    info.private_data = data;
    pool.receive(name, info);
  }
  static msg::SubmitT submission_of_owners(uint32_t owners, uint32_t nodes = 0) {
    msg::SubmitT submit = submission(nodes);
    Experiment experiment = parse_experiment(submit.experiment, "test");
    experiment.data.train = "private:clinic";
    experiment.cluster.replicas = owners;
    experiment.cluster.epoch_steps = 100;
    submit.experiment = to_toml(experiment);
    return submit;
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
  EXPECT_THAT(pool.node("b").private_data, testing::ElementsAre("other", "clinic"));
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
