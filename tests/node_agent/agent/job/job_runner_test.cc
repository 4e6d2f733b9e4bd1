// How a run ends: a stop ends it with a checkpoint, an abort without.
#include "node_agent/agent/job/job_runner.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sched.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/parallel/idle_thread.h"
#include "base/parallel/throttle.h"

namespace modelet::agent {
namespace {

using comm::control::Outcome;
using comm::control::PreparedT;
using comm::control::RunDoneT;

// A job that prepares when it is allowed to, then makes steps until it is stopped, and notes that it wrote
// its checkpoint.
class EndlessJob final : public Job {
 public:
  EndlessJob(std::shared_future<void> may_prepare, std::atomic<bool>& checkpoint)
      : may_prepare_(std::move(may_prepare)), checkpoint_(checkpoint) {}

  void prepare(const EventSink&) override { may_prepare_.wait(); }
  void run(comm::Group& group, const EventSink&, const SnapshotSink&) override {
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
      for (AgentEvent& event : mailbox.take())
        if (auto* wanted = std::get_if<Message>(&std::get<FromJob>(event).message)) return std::move(*wanted);
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
  const TemporaryFolder folder{"job-runner-test"};
  SnapshotService service{{.node = "a", .folder = folder.path() / "holder"}, [](const auto&) {}};
  JobRunner runner{description(),
                   {},
                   [this, ready = may_prepare.get_future().share()](TrainJob) {
                     return std::make_unique<EndlessJob>(ready, checkpoint);
                   },
                   {},
                   mailbox,
                   {service}};
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
  runner.start(endpoints);  // both come before the runner looks
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
  EXPECT_TRUE(done.retry);
  EXPECT_EQ(done.epoch, 1u);
  EXPECT_FALSE(checkpoint);
}

TEST_F(JobRunnerTest, AfterAnAbortTheNextEpochPrepares) {
  may_prepare.set_value();
  next<PreparedT>();
  runner.start(endpoints);
  runner.abort("the group is formed anew");
  EXPECT_EQ(next<RunDoneT>().epoch, 1u);
  comm::control::PrepareT prepare = description();
  prepare.epoch = 2;
  std::promise<void> ready;
  ready.set_value();
  JobRunner other{prepare,
                  {},
                  [this, ready = ready.get_future().share()](TrainJob) {
                    return std::make_unique<EndlessJob>(ready, checkpoint);
                  },
                  {},
                  mailbox,
                  {service}};
  EXPECT_EQ(next<PreparedT>().epoch, 2u);
  other.start(endpoints);
  other.request_stop();
  const RunDoneT done = next<RunDoneT>();
  EXPECT_EQ(done.epoch, 2u);
  EXPECT_FALSE(done.retry);
}

// Goes on from a checkpoint of step 1000, and does three steps.
class ResumedJob final : public Job {
 public:
  void prepare(const EventSink&) override { step_ = 1000; }
  void run(comm::Group& group, const EventSink&, const SnapshotSink&) override {
    while (step_ < 1003) group.barrier({.step = ++step_});
  }
  void request_stop() override {}
  uint64_t step() const override { return step_; }
  uint64_t steps_learned() const override { return 2 * (step_ - 1000); }
  uint64_t memory_bytes() const override { return 1; }

 private:
  std::atomic<uint64_t> step_{0};
};

TEST_F(JobRunnerTest, StepsBeforeTheCheckpointDoNotCount) {
  JobRunner other{description(), {},       [](TrainJob) { return std::make_unique<ResumedJob>(); }, {},
                  mailbox,       {service}};
  next<PreparedT>();
  EXPECT_EQ(other.step(), 1000u);
  EXPECT_EQ(other.steps_here(), 0u);
  other.start(endpoints);
  EXPECT_EQ(next<RunDoneT>().step, 1003u);
  EXPECT_EQ(other.steps_here(), 3u);
  EXPECT_EQ(other.steps_learned(), 6u) << "also after its end";
  may_prepare.set_value();
}

// Fails in its first step.
class FailingJob final : public Job {
 public:
  explicit FailingJob(bool of_a_peer) : of_a_peer_(of_a_peer) {}
  void prepare(const EventSink&) override {}
  void run(comm::Group&, const EventSink&, const SnapshotSink&) override {
    if (of_a_peer_) throw PeerError(1, "rank 1 is gone");
    throw Error("the disk is full");
  }
  void request_stop() override {}
  uint64_t step() const override { return 0; }
  uint64_t memory_bytes() const override { return 1; }

 private:
  const bool of_a_peer_;
};

TEST_F(JobRunnerTest, WhatALostPeerEndsMayBeTriedAgain) {
  may_prepare.set_value();
  runner.abort("enough");
  next<RunDoneT>();
  for (const bool of_a_peer : {true, false}) {
    JobRunner other{description(),
                    {},
                    [of_a_peer](TrainJob) { return std::make_unique<FailingJob>(of_a_peer); },
                    {},
                    mailbox,
                    {service}};
    other.start(endpoints);
    const RunDoneT done = next<RunDoneT>();
    EXPECT_EQ(done.outcome, Outcome::Failed);
    EXPECT_EQ(done.retry, of_a_peer);
  }
}

TEST_F(JobRunnerTest, AStopBeforeTheStartLeavesNoCheckpoint) {
  runner.request_stop();
  may_prepare.set_value();
  const RunDoneT done = next<RunDoneT>();
  EXPECT_EQ(done.outcome, Outcome::Failed);
  EXPECT_THAT(done.message, testing::HasSubstr("before the first step"));
}

// A job that prepares a text without end, and reports its progress.
class PreparingJob final : public Job {
 public:
  void prepare(const EventSink& events) override {
    for (;;) events({{"event", "preparing"}, {"file", "train.txt"}});
  }
  void run(comm::Group&, const EventSink&, const SnapshotSink&) override {}
  void request_stop() override {}
  uint64_t step() const override { return 0; }
  uint64_t memory_bytes() const override { return 1; }
};

TEST_F(JobRunnerTest, ThePreparationOfTextIsReportedAndEndsWithTheRun) {
  may_prepare.set_value();
  runner.abort("enough");
  next<RunDoneT>();
  comm::control::PrepareT prepare = description();
  prepare.node_names = {"office-17"};
  for (const bool stop : {true, false}) {
    JobRunner other{prepare, {},      [](TrainJob) { return std::make_unique<PreparingJob>(); },
                    {},      mailbox, {service}};
    const auto message = next<comm::control::RunEventT>();
    EXPECT_EQ(message.kind, comm::control::EventKind::Preparing);
    const auto event = nlohmann::json::parse(message.json);
    EXPECT_EQ(event.at("event"), "preparing");
    EXPECT_EQ(event.at("node"), "office-17");
    stop ? other.request_stop() : other.abort("the agent is leaving");
    EXPECT_THAT(next<RunDoneT>().message, testing::HasSubstr(stop ? "before the first step" : "is leaving"));
  }
}

// The policies of the threads that ZeroMQ has in this process.
std::set<int> policies_of_sockets() {
  std::set<int> policies;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.starts_with("ZMQbg"))
      policies.insert(::sched_getscheduler(std::stoi(task.path().filename().string())));
  }
  return policies;
}

// Computes while it prepares, as a run on a lent machine does.
class IdleJob final : public Job {
 public:
  explicit IdleJob(std::set<int>& policies) : policies_(policies) {}
  void prepare(const EventSink&) override { become_idle_thread(); }
  void run(comm::Group&, const EventSink&, const SnapshotSink&) override {
    // A thread gives itself its name once it has got a core.
    while ((policies_ = policies_of_sockets()).empty())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void request_stop() override {}
  uint64_t step() const override { return 0; }
  uint64_t memory_bytes() const override { return 1; }

 private:
  std::set<int>& policies_;
};

TEST_F(JobRunnerTest, MessagesDoNotWaitForAnIdleCore) {
  may_prepare.set_value();
  runner.abort("enough");
  next<RunDoneT>();
  std::set<int> policies;
  JobRunner other{description(), {},       [&](TrainJob) { return std::make_unique<IdleJob>(policies); }, {},
                  mailbox,       {service}};
  other.start(endpoints);
  EXPECT_EQ(next<RunDoneT>().outcome, Outcome::Ok);
  EXPECT_EQ(policies, std::set<int>{::sched_getscheduler(0)});
}

TEST_F(JobRunnerTest, WhatComesBeforeTheFirstStepGivesWayToo) {
  may_prepare.set_value();
  runner.abort("enough");
  next<RunDoneT>();
  Throttle throttle;
  TrainJob job;
  job.throttle = &throttle;
  std::atomic<bool> is_allowed{false};
  std::optional<int> policy;
  const auto make = [&](TrainJob) {
    EXPECT_TRUE(is_allowed);
    policy = ::sched_getscheduler(0);
    return std::make_unique<PreparingJob>();
  };
  throttle.allow(0);
  {
    JobRunner other{description(), job, make, {}, mailbox, {service}};
    other.abort("the agent is leaving");
    EXPECT_EQ(next<RunDoneT>().message, "the agent is leaving");
    EXPECT_FALSE(policy) << "no job was made";
  }
  JobRunner other{description(), job, make, {}, mailbox, {service}};
  is_allowed = true;
  throttle.allow(1);
  next<comm::control::RunEventT>();
  EXPECT_EQ(policy, SCHED_IDLE);
  is_allowed = false;
  throttle.allow(0);
  other.request_stop();
  EXPECT_THAT(next<RunDoneT>().message, testing::HasSubstr("before the first step"));
}

// The user who submitted the run may not be allowed to read the file, so its content must not be sent.
TEST_F(JobRunnerTest, WhatStandsInAFileDoesNotTravel) {
  may_prepare.set_value();
  runner.abort("enough");
  next<RunDoneT>();
  const auto told = [&](const auto& error) {
    JobRunner other{description(), {},       [&](TrainJob) -> std::unique_ptr<Job> { throw error; }, {},
                    mailbox,       {service}};
    return next<RunDoneT>();
  };
  EXPECT_EQ(
      told(FormatError("/data/a.txt:3: expected a number, found 'root:x' after 'it's'; mend it")).message,
      "/data/a.txt:3: expected a number, found '...'; mend it");
  const RunDoneT misfit = told(MisfitError("/data/a.csv: there is no column 'tags' among 1; known: root:x"));
  EXPECT_EQ(misfit.message, "/data/a.csv: there is no column '...'");
  EXPECT_TRUE(misfit.user_error);
}

// The machine had the address when the agent began.
TEST_F(JobRunnerTest, ForANodeWhoseAddressHasChangedAnotherMayDo) {
  may_prepare.set_value();
  runner.abort("enough");
  next<RunDoneT>();
  JobRunner other{description(),
                  {},
                  [](TrainJob) -> std::unique_ptr<Job> { throw Error("was made"); },
                  {.bind = "tcp://192.0.2.1:*"},  // an address for documentation (RFC 5737)
                  mailbox,
                  {service}};
  const RunDoneT done = next<RunDoneT>();
  EXPECT_THAT(done.message, testing::HasSubstr("192.0.2.1"));
  EXPECT_TRUE(done.retry);
  EXPECT_FALSE(done.user_error);
}

}  // namespace
}  // namespace modelet::agent
