// Nodes that are silent, or that others miss.
#include <gmock/gmock.h>

#include "tests/scheduler/core/recovery_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;
using testing::ElementsAre;

class MissedTest : public RecoveryTest {
 protected:
  // A member of the first group says at `step` that it misses another one, or that it does no longer.
  void misses(const char* by, uint32_t rank, uint64_t step) { tell(by, rank, step, false); }
  void finds(const char* by, uint32_t rank) { tell(by, rank, 0, true); }
  uint32_t rank_of(const char* name) {
    const Names members = status().node_names;
    return static_cast<uint32_t>(std::ranges::find(members, name) - members.begin());
  }

 private:
  void tell(const char* by, uint32_t rank, uint64_t step, bool over) {
    pool.receive(by, msg::PeerMissedT{{}, run, 1, rank, over ? "" : "silent", over, step});
  }
};

// The groups of these nodes go on working.
TEST_F(MissedTest, WhenMostNodesFallSilentTheSchedulerMayBeCutOff) {
  start({"a", "b", "c"}, 3);
  join("d");
  snapshot(100);
  pass(20, {"d"}, 0);
  EXPECT_EQ(status().epoch, 1u);
  EXPECT_EQ(status().state, RunState::Running);
  pass(4, {"a", "d"}, 150);
  EXPECT_EQ(status().state, RunState::Running) << "a is back, the others may follow";
  pass(3, {"a", "d"}, 150);
  EXPECT_NE(status().state, RunState::Running) << "they do not";
}

TEST_F(MissedTest, NobodyWaitsForMoreThanHalfAMinute) {
  start({"a", "b", "c"}, 3);
  join("d");
  snapshot(100);
  pass(29, {"d"}, 0);
  EXPECT_EQ(status().state, RunState::Running);
  pass(3, {"d"}, 0);
  EXPECT_NE(status().state, RunState::Running);
}

TEST_F(MissedTest, WhomAPeerMissesIsDeadAsSoonAsUsual) {
  start({"a", "b", "c", "d"}, 4);
  snapshot(100);
  pass(1, {"d"}, 150);
  misses("d", rank_of("a"), 150);
  pass(5, {"d"}, 150);
  EXPECT_NE(status().state, RunState::Running);
}

TEST_F(MissedTest, AMemberThatHasEndedIsMissed) {
  start({"a", "b"});
  snapshot(100);
  pool.receive("a", done(run, Outcome::Ok, 200));
  misses("b", 0, 200);
  pass(6, {"a", "b"}, 200);
  EXPECT_EQ(status().state, RunState::Forming) << "it hung";
  EXPECT_EQ(status().epoch, 2u);
}

TEST_F(MissedTest, AMissedNodeWithoutAConnectionIsLostAtOnce) {
  start({"a", "b"});
  snapshot(100);
  pool.inbox.clear();
  pool.now += 0.1;
  misses("a", 1, 100);
  EXPECT_EQ(pool.take<msg::AliveT>("b").size(), 1u);
  pool.handle(PeerGone{"b"});
  EXPECT_EQ(status().state, RunState::Forming);
  EXPECT_THAT(status().node_names, ElementsAre("a"));
}

TEST_F(MissedTest, AMissedNodeThatLivesGetsTime) {
  start({"a", "b"});
  snapshot(100);
  misses("a", 1, 100);
  pass(3, {"a", "b"}, 100);
  pool.handle(PeerGone{"b"});
  EXPECT_EQ(status().epoch, 1u);
  pass(20, {"a", "b"}, 120);
  EXPECT_EQ(status().epoch, 1u) << "the group goes on";
  misses("a", 1, 120);
  pass(20, {"a", "b"}, 120);
  EXPECT_EQ(status().epoch, 2u) << "it does not";
}

// While the nodes wait for a full disk, for example, the step does not grow.
TEST_F(MissedTest, WhoIsMissedNoMoreIsNoReasonForANewGroup) {
  start({"a", "b", "c"});
  snapshot(100);
  pass(1, {"a", "b", "c"}, 100);
  for (const char* by : {"a", "c"}) misses(by, 1, 100);
  pass(3, {"a", "b", "c"}, 100);
  finds("a", 1);
  finds("c", 1);
  pass(60, {"a", "b", "c"}, 100);
  EXPECT_EQ(status().epoch, 1u);
  for (const char* by : {"a", "c"}) misses(by, 1, 100);
  finds("a", 1);
  pass(20, {"a", "b", "c"}, 100);
  EXPECT_EQ(status().epoch, 2u) << "c still misses it";
}

TEST_F(MissedTest, EachMissHasItsOwnTime) {
  start({"a", "b", "c"});
  snapshot(100);
  pass(1, {"a", "b", "c"}, 100);
  misses("a", 1, 100);
  pass(8, {"a", "b", "c"}, 100);
  misses("c", 0, 100);
  finds("a", 1);
  pass(9, {"a", "b", "c"}, 100);
  EXPECT_EQ(status().epoch, 1u) << "a is missed for nine seconds";
  pass(2, {"a", "b", "c"}, 100);
  EXPECT_EQ(status().epoch, 2u);
}

// Another replica may train on for many steps.
TEST_F(MissedTest, AMissLastsWhileOthersGetOn) {
  start({"a", "b", "c"});
  snapshot(100);
  pass(1, {"a", "b", "c"}, 100);
  misses("a", 1, 100);
  for (uint64_t i = 1; i <= 12 && status().epoch == 1; ++i) {
    beat("a", 100);
    beat("b", 100);
    pass(1, {"c"}, 100 + i);
  }
  EXPECT_EQ(status().epoch, 2u);
}

TEST_F(MissedTest, WhoGetsOnMissesNobody) {
  start({"a", "b", "c"});
  snapshot(100);
  pass(1, {"a", "b", "c"}, 100);
  misses("a", 1, 100);
  pass(9, {"a", "b", "c"}, 100);
  pass(9, {"a", "b", "c"}, 101);
  EXPECT_EQ(status().epoch, 1u);
}

// Small messages get through each time that the connection is back, but what the step needs does not.
TEST_F(MissedTest, AConnectionThatComesAndGoesIsOneMiss) {
  start({"a", "b", "c"});
  snapshot(100);
  pass(1, {"a", "b", "c"}, 100);
  for (int i = 0; i < 4; ++i) {
    misses("a", 1, 100);
    pass(2, {"a", "b", "c"}, 100);
    finds("a", 1);
    pass(1, {"a", "b", "c"}, 100);
  }
  EXPECT_EQ(status().epoch, 2u);
}

TEST_F(MissedTest, WhoIsMissedNoMoreIsNotDeadSoonerThanOthers) {
  start({"a", "b", "c", "d"}, 4);
  snapshot(100);
  pass(1, {"d"}, 150);
  misses("d", rank_of("a"), 150);
  finds("d", rank_of("a"));
  pass(10, {"d"}, 150);
  EXPECT_EQ(status().state, RunState::Running) << "most nodes are silent: the scheduler may be cut off";
}

}  // namespace
}  // namespace modelet::scheduler::test
