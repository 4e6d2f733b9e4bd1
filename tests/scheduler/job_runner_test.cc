// How the last word on a run comes about: a stop ends it with a checkpoint, an abort does not.
#include "node_agent/job_runner.h"

#include <gmock/gmock.h>
#include <poll.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace modelet::agent {
namespace {

using comm::control::Outcome;
using comm::control::PreparedT;
using comm::control::RunDoneT;

// Prepares when it may, then steps until it is stopped; notes that it wrote its checkpoint.
class EndlessJob final : public Job {
 public:
  EndlessJob(std::shared_future<void> may_prepare, std::atomic<bool>& checkpoint)
      : may_prepare_(std::move(may_prepare)), checkpoint_(checkpoint) {}

  void prepare() override { may_prepare_.wait(); }
  void run(comm::Group& group, const EventSink&) override {
    while (!stop_) group.barrier({.step = ++step_});
    checkpoint_ = true;
    throw Interrupted("stopped");
  }
  void request_stop() override { stop_ = true; }
  uint64_t step() const override { return step_; }
  uint64_t memory_bytes() const override { return 1; }

 private:
  const std::shared_future<void> may_prepare_;
  std::atomic<bool>& checkpoint_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> step_{0};
};

// A run of one rank, on one node.
class JobRunnerTest : public testing::Test {
 protected:
  // Waits for the runner's next message of this type.
  template <class Message>
  Message next() {
    for (;;) {
      for (comm::control::ToSchedulerMessage& message : mailbox.take())
        if (auto* wanted = std::get_if<Message>(&message)) return std::move(*wanted);
      pollfd readable{mailbox.fd(), POLLIN, 0};
      ::poll(&readable, 1, -1);
    }
  }
  static comm::control::PrepareT description() {
    comm::control::PrepareT prepare;
    prepare.run = 7;
    prepare.epoch = 1;
    prepare.size = 1;
    return prepare;
  }

  const std::vector<comm::Peer> endpoints{
      {"tcp://127.0.0.1:1"}};  // of rank 0, which does not connect to itself
  std::promise<void> may_prepare;
  std::atomic<bool> checkpoint{false};
  Mailbox mailbox;
  JobRunner runner{description(),
                   {},
                   [this, ready = may_prepare.get_future().share()](TrainJob) {
                     return std::make_unique<EndlessJob>(ready, checkpoint);
                   },
                   {},
                   mailbox};
};

TEST_F(JobRunnerTest, AStoppedRunHasItsCheckpoint) {
  may_prepare.set_value();
  next<PreparedT>();
  runner.start(endpoints);
  runner.request_stop();
  EXPECT_EQ(next<RunDoneT>().outcome, Outcome::Interrupted);
  EXPECT_TRUE(checkpoint);
}

TEST_F(JobRunnerTest, AStopRightAfterTheStartReachesTheJob) {
  runner.start(endpoints);  // both before the runner looks
  runner.request_stop();
  may_prepare.set_value();
  EXPECT_EQ(next<RunDoneT>().outcome, Outcome::Interrupted);
  EXPECT_TRUE(checkpoint);
}

TEST_F(JobRunnerTest, AnAbortedRunHasFailed) {
  may_prepare.set_value();
  next<PreparedT>();
  runner.start(endpoints);
  runner.abort("the agent is leaving");
  const RunDoneT done = next<RunDoneT>();
  EXPECT_EQ(done.outcome, Outcome::Failed);
  EXPECT_EQ(done.message, "the agent is leaving");
  EXPECT_FALSE(checkpoint);
}

TEST_F(JobRunnerTest, AStopBeforeTheStartLeavesNoCheckpoint) {
  runner.request_stop();
  may_prepare.set_value();
  const RunDoneT done = next<RunDoneT>();
  EXPECT_EQ(done.outcome, Outcome::Failed);
  EXPECT_THAT(done.message, testing::HasSubstr("before the first step"));
}

}  // namespace
}  // namespace modelet::agent
