// Runs that do without nodes which cannot work for them.
#include <gmock/gmock.h>

#include "tests/scheduler/core/recovery_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;
using testing::ElementsAre;
using testing::HasSubstr;

class LeftOutTest : public RecoveryTest {};

// What is wrong with one node does not end the run.
TEST_F(LeftOutTest, ASpareThatCannotWorkForTheRunIsDoneWithout) {
  start({"a", "b"}, 2);
  join("c");
  snapshot(100);
  pool.receive("b", msg::LeaveT{});
  ASSERT_THAT(status().node_names, ElementsAre("a", "c"));
  msg::RunDoneT failed = done(run, Outcome::Failed, 0, "the cache is full", 2);
  failed.user_error = true;
  pool.receive("c", failed);
  EXPECT_THAT(status().node_names, ElementsAre("a"));
  EXPECT_THAT(pool.log, HasSubstr("does without node 'c'"));
  get_ready({"a"});
  EXPECT_EQ(status().step, 100u);
  pool.receive("a", progress(run, {1}));
  EXPECT_EQ(pool.node("c").run, 0u);
  EXPECT_TRUE(pool.take<msg::StopT>("a").empty()) << "c is no help";
  join("d");
  pool.receive("a", progress(run, {1}));
  EXPECT_EQ(pool.take<msg::StopT>("a").size(), 1u) << "d is";
}

TEST_F(LeftOutTest, SeveralSparesThatCannotWorkForTheRunAreDoneWithout) {
  start({"a", "b", "c"}, 3);
  for (const char* spare : {"d", "e"}) join(spare);
  for (const auto& [rank, member] : {std::pair(0U, "a"), {1U, "b"}, {2U, "c"}})
    pool.receive(member, held(run, 1, 100, rank, {"a", rank == 1 ? "c" : "b"}));
  for (const char* lost : {"b", "c"}) pool.receive(lost, msg::LeaveT{});
  ASSERT_EQ(status().state, RunState::Forming);
  const uint32_t epoch = status().epoch;
  ASSERT_THAT(status().node_names, testing::UnorderedElementsAre("a", "d", "e"));
  pool.plans_later = true;
  pool.receive("d", done(run, Outcome::Failed, 0, "no such data", epoch));
  ASSERT_EQ(status().state, RunState::Recovering);
  pool.receive("e", done(run, Outcome::Failed, 0, "no such data", epoch));
  ASSERT_EQ(status().state, RunState::Recovering) << status().detail;
  pool.handle(carry_out(pool.requests.back()));
  EXPECT_EQ(status().state, RunState::Forming);
  EXPECT_THAT(status().node_names, ElementsAre("a"));
}

// The pool has many nodes of another release. None of them uses up an attempt.
TEST_F(LeftOutTest, NodesThatCannotWorkForTheRunUseUpNoAttempts) {
  start({"a", "b"}, 2);
  Names strangers;
  for (char name = 'c'; name < 'z'; ++name) {
    strangers.emplace_back(1, name);
    join(strangers.back());
  }
  snapshot(100);
  pool.receive("b", msg::LeaveT{});
  for (size_t i = 0; i < strangers.size(); ++i) {
    ASSERT_EQ(status().state, RunState::Forming) << status().detail;
    const Names members = status().node_names;
    if (members.size() == 1) break;
    pool.receive(members.back(), done(run, Outcome::Failed, 0, "another release", status().epoch));
    for (int seconds = 0; seconds < 60 && status().state == RunState::Recovering; ++seconds)
      pass(1, {"a"}, 100);
  }
  EXPECT_THAT(status().node_names, ElementsAre("a"));
}

// Nothing has worked before, so the reason may be the experiment.
TEST_F(LeftOutTest, BeforeAnythingHasWorkedAFailureIsTold) {
  pool.handle(Tick{});
  for (const char* name : {"a", "b"}) join(name);
  pool.receive("client", submission(2));
  run = pool.take<msg::AcceptedT>("client").at(0).run;
  pool.receive("b", msg::LeaveT{});
  ASSERT_EQ(status().epoch, 2u);
  msg::RunDoneT failed = done(run, Outcome::Failed, 0, "there is no column 'tags'", 2);
  failed.user_error = true;
  pool.receive("a", failed);
  EXPECT_EQ(status().state, RunState::Failed);
  EXPECT_TRUE(status().user_error);
}

TEST_F(LeftOutTest, ARunThatNeedsAllItsNodesWaitsForAnother) {
  start_with_all({"a", "b"});
  join("c");
  snapshot(100);
  pool.receive("b", msg::LeaveT{});
  pool.receive("c", done(run, Outcome::Failed, 0, "the cache is full", 2));
  pool.receive("a", done(run, Outcome::Failed, 0, "aborted", 2));
  pass(3, {"a", "c"}, 0);
  EXPECT_EQ(status().state, RunState::Waiting);
  EXPECT_THAT(status().detail, HasSubstr("does without node 'c'"));
  EXPECT_THAT(status().detail, HasSubstr("the cache is full"));
  join("d");
  get_ready({"a", "d"});
  pool.receive("d", msg::LeaveT{});
  pass(3, {"a", "c"}, 0);
  pool.receive("a", done(run, Outcome::Failed, 0, "aborted", 3));
  ASSERT_EQ(status().state, RunState::Waiting) << status().detail;
  pass(600, {"a", "c"}, 0);
  EXPECT_EQ(status().state, RunState::Forming) << "c may be in order again";
}

TEST_F(LeftOutTest, ASpareThatOthersCannotReachIsDoneWithout) {
  for (const char* endpoint : {"nonsense", "tcp://127.0.0.1:4000"}) {
    pool = Harness();
    start({"a", "b"}, 2);
    join("c");
    snapshot(100);
    pool.receive("b", msg::LeaveT{});
    pool.receive("a", prepared(run, "tcp://a:1", 2));
    pool.receive("c", prepared(run, endpoint, 2));
    EXPECT_THAT(status().node_names, ElementsAre("a")) << endpoint;
    EXPECT_EQ(pool.take<msg::AbortT>("c").size(), 1u);
    get_ready({"a"});
  }
}

TEST_F(LeftOutTest, ANodeThatOthersDoNotReachForLongIsLeftOut) {
  start({"a", "b", "c"});
  snapshot(100);
  const Names all = {"a", "b", "c"};
  pass(1, all, 100);
  for (uint32_t group = 1; status().node_names.size() == 3; ++group) {
    ASSERT_LT(group, 6u);
    for (const char* by : {"a", "c"})
      pool.receive(by, msg::PeerMissedT{{}, run, status().epoch, 1, "no way to it", false, 100});
    pool.receive("b", msg::PeerMissedT{{}, run, status().epoch, 0, "no way to it", false, 100});
    for (int i = 0; i < 60 && status().state != RunState::Forming; ++i) pass(1, all, 100);
    ASSERT_EQ(status().state, RunState::Forming) << status().detail;
    get_ready(status().node_names);
  }
  EXPECT_THAT(status().node_names, ElementsAre("a", "c"));
}

// Two members accuse each other, or one accuses the other: nothing tells who is at fault or lies.
TEST_F(LeftOutTest, TwoThatDoNotReachEachOtherTakeTurns) {
  for (const bool both : {true, false})
    for (const Names& pair : {Names{"a", "b"}, Names{"y", "x"}}) {
      pool = Harness();
      start(pair, 2);
      snapshot(100);
      const Names all = {pair[0], pair[1], "m"};
      std::vector<std::string> left_out;
      for (int turn = 0; turn < 2; ++turn) {
        join("m");
        pass(1, all, 100);
        const auto is_in_group = [&](const std::string& name) {
          const Names members = status().node_names;
          return std::ranges::find(members, name) != members.end();
        };
        for (int group = 0; !is_in_group("m"); ++group) {
          ASSERT_LT(group, 6);
          const Names members = status().node_names;
          for (uint32_t rank = 0; rank < 2; ++rank)
            if (both || members[rank] == pair[0])
              pool.receive(members[rank],
                           msg::PeerMissedT{{}, run, status().epoch, 1 - rank, "no way", false, 100});
          for (int i = 0; i < 60 && status().state != RunState::Forming; ++i) pass(1, all, 100);
          ASSERT_EQ(status().state, RunState::Forming) << status().detail;
          get_ready(status().node_names);
        }
        for (const std::string& each : pair)
          if (!is_in_group(each)) left_out.push_back(each);
        pass(61, all, 100);
        pool.receive("m", msg::LeaveT{});
        ASSERT_EQ(status().state, RunState::Forming) << status().detail << ": nobody is left out for long";
        ASSERT_THAT(status().node_names, testing::UnorderedElementsAreArray(pair));
        get_ready(status().node_names);
      }
      EXPECT_THAT(left_out, testing::UnorderedElementsAreArray(pair)) << both;
    }
}

// Whoever accuses most of the others is as likely to be cut off as they are, and there is one of it.
TEST_F(LeftOutTest, WhoAccusesAllOthersIsLeftOut) {
  start({"a", "b", "z"});
  snapshot(100);
  const Names all = {"a", "b", "z"};
  pass(1, all, 100);
  while (status().node_names.size() == 3) {
    ASSERT_LT(status().epoch, 8u);
    for (const uint32_t rank : {0U, 1U})
      pool.receive("z", msg::PeerMissedT{{}, run, status().epoch, rank, "no way to it", false, 100});
    for (int i = 0; i < 60 && status().state != RunState::Forming; ++i) pass(1, all, 100);
    ASSERT_EQ(status().state, RunState::Forming) << status().detail;
    get_ready(status().node_names);
  }
  EXPECT_THAT(status().node_names, ElementsAre("a", "b"));
}

TEST_F(LeftOutTest, ANodeThatFailsEachTimeIsLeftOut) {
  start({"a", "b", "c"});
  snapshot(100);
  const Names all = {"a", "b", "c"};
  while (status().node_names.size() == 3) {
    ASSERT_LT(status().epoch, 8u);
    msg::RunDoneT failed = done(run, Outcome::Failed, 100, "no space left on device", status().epoch);
    failed.retry = true;
    pool.receive("b", failed);
    for (int i = 0; i < 60 && status().state != RunState::Forming; ++i) pass(1, all, 100);
    ASSERT_EQ(status().state, RunState::Forming) << status().detail;
  }
  EXPECT_THAT(status().node_names, ElementsAre("a", "c"));
}

// Reasons may be in any language. Where they are too long, they are cut between two characters.
TEST_F(LeftOutTest, ReasonsOfAnyLengthAreShown) {
  for (const char* before : {"", "x"}) {
    pool = Harness();
    std::string reason = before;
    for (int i = 0; i < 600; ++i) reason += "\u00fc";
    start({"a"});
    msg::RunDoneT failed = done(run, Outcome::Failed);
    failed.retry = true;
    pool.receive("a", failed);
    ASSERT_EQ(status().state, RunState::Forming) << status().detail;
    pool.receive("a", done(run, Outcome::Failed, 0, reason, status().epoch));
    EXPECT_THAT(status().detail, HasSubstr("does without node 'a'"));
    pool.restart();
    EXPECT_THAT(status().detail, HasSubstr("\u00fc..."));
  }
}

}  // namespace
}  // namespace modelet::scheduler::test
