// The queue, its order, and what is known of the runs in it.
#include "tests/scheduler/core/recovery_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;

class QueueTest : public RecoveryTest {};

TEST_F(QueueTest, TheHighestPriorityStartsFirst) {
  start({"a"});
  for (const int priority : {0, 5, 1}) {
    msg::SubmitT submit = submission(1);
    submit.priority = priority;
    pool.receive("client", submit);
  }
  snapshot(10, true);
  all_done(Outcome::Ok, 10);
  EXPECT_EQ(pool.run(3).state, RunState::Forming);
}

TEST_F(QueueTest, TheLastLinesOfANodeThatWorksNoMoreForARunAreKept) {
  CoreOptions options;
  options.has_ledger = true;
  pool = Harness(options);
  start({"a", "b", "c"});
  join("d");
  pool.receive("admin", msg::DrainNodeT{{}, "c", true});
  snapshot(12, true);
  all_done(Outcome::Interrupted, 12);
  ASSERT_EQ(pool.node("c").run, 0u);
  msg::RunEventT log = event(run, msg::EventKind::Log);
  log.log = "the last\n";
  for (const char* name : {"c", "d"}) pool.receive(name, log);
  EXPECT_EQ(pool.written.log_of("c"), "the last\n");
  EXPECT_EQ(pool.written.log_of("d"), pool.node("d").run == run ? "the last\n" : "") << "never worked for it";
}

// The answer to a submission may be lost with the connection, or with the scheduler.
TEST_F(QueueTest, ASubmissionThatIsSentAgainIsTheSameRun) {
  msg::SubmitT submit = submission(1);
  submit.token = 5;
  pool.receive("client", submit);
  pool.receive("client-again", submit);
  pool.restart();
  pool.receive("client-after-restart", submit);
  for (const char* client : {"client", "client-again", "client-after-restart"})
    EXPECT_EQ(pool.take<msg::AcceptedT>(client).at(0).run, 1u) << client;
  submit.token = 6;
  pool.receive("another", submit);
  EXPECT_EQ(pool.take<msg::AcceptedT>("another").at(0).run, 2u);
  submit.token = 0;
  for (const uint64_t next : {3, 4}) {
    pool.receive("client", submit);
    EXPECT_EQ(pool.take<msg::AcceptedT>("client").back().run, next) << "an earlier release gives no token";
  }
}

TEST_F(QueueTest, ASmallRunUsesWhatALargeOneCannotYet) {
  start({"a", "b", "c"}, 3);
  for (const char* name : {"d", "e"}) join(name);
  pool.receive("client", submission(4));  // must wait until the first run ends
  pool.receive("client", submission(1));
  EXPECT_EQ(pool.run(2).state, RunState::Queued);
  EXPECT_EQ(pool.run(3).state, RunState::Forming) << "4 of 5 are enough when the first has ended";
  pool.receive("client", submission(1));
  EXPECT_EQ(pool.run(4).state, RunState::Queued) << "3 of 5 would not be";
  EXPECT_EQ(pool.run(4).detail, "waits behind run 2");
}

TEST_F(QueueTest, FilesAreFound) {
  start({"a", "b"});
  snapshot(100, true);
  snapshot(200, false);
  pool.receive("client", msg::FindRunFilesT{{}, run});
  const auto files = pool.take<msg::RunFilesT>("client").at(0);
  std::vector<comm::Snapshot> snapshots;
  for (const auto& table : files.snapshots) snapshots.push_back(msg::snapshot_of(*table));
  ASSERT_EQ(snapshots.size(), 2u);
  EXPECT_EQ(snapshots[0].step, 200u);
  EXPECT_EQ(snapshots[1].step, 100u) << "kept";
  EXPECT_EQ(files.holders.size(), 2u);
  EXPECT_EQ(files.experiment, submission(2).experiment);
}

}  // namespace
}  // namespace modelet::scheduler::test
