// Thousands of random events over a network that loses connections. The invariants in agent_core.h must hold
// after each.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/rng.h"
#include "tests/node_agent/agent/core/agent_core_harness.h"

namespace modelet::agent::test {
namespace {

using msg::Outcome;

// A scheduler that may send anything at any time, a job that ends at any time, and a connection between them
// that loses messages under way. Nevertheless the reports of the agent arrive, in order.
class Storm {
 public:
  explicit Storm(uint64_t seed) : rng_(seed) {}

  void blow(int events) {
    for (int i = 0; i < events && !ended_ && !testing::Test::HasFailure(); ++i) one_event();
  }
  // The scheduler stays, and jobs end when they are aborted.
  void calm() {
    for (int i = 0; i < 200 && !ended_; ++i) {
      now_ += 0.5;
      handle(Tick{});
      deliver(1000);
      if (aborted_) end_job(Outcome::Failed);
    }
  }
  void leave() {
    handle(AskedToLeave{60, "SIGTERM"});
    for (int i = 0; i < 400 && !ended_; ++i) {
      one_event();
      now_ += 0.2;
      handle(Tick{});
      if (aborted_) end_job(Outcome::Failed);
    }
    EXPECT_TRUE(ended_);
  }

  // Checks that the agent answered each Prepare with RunDone, unless a later epoch replaced it.
  void check_answers() const {
    for (const auto& [run, epoch] : latest_) {
      const bool at_work = job_ && job_->run == run;
      EXPECT_TRUE(at_work || done_.contains({run, epoch})) << "run " << run << " epoch " << epoch;
    }
  }
  // Checks that the events of the agent have arrived.
  void check_events() const { EXPECT_EQ(arrived_events_, told_events_); }
  int jobs = 0, dones = 0;

 private:
  struct JobState {
    uint64_t run = 0;
    uint32_t epoch = 0;
    bool prepared = false, started = false;
  };

  void handle(const AgentEvent& event) {
    if (ended_) return;
    for (const AgentAction& action : core_.handle(now_, event)) {
      EXPECT_FALSE(ended_);
      std::visit([this](const auto& what) { on(what); }, action);
    }
  }

  void on(const Send& send) { wire_.push_back(send.message); }
  void on(const PrepareJob& action) {
    EXPECT_FALSE(job_.has_value());
    const msg::PrepareT& asked = action.prepare;
    job_ = JobState{.run = asked.run, .epoch = asked.epoch};
    aborted_ = false;
    ++jobs;
  }
  void on(const StartJob& action) {
    ASSERT_TRUE(job_ && job_->prepared && !job_->started);
    EXPECT_EQ(action.start.epoch, job_->epoch);
    job_->started = true;
  }
  void on(const StopJob&) { EXPECT_TRUE(job_.has_value()); }
  void on(const TraceJob&) { EXPECT_TRUE(job_.has_value()); }
  void on(const AbortJob&) {
    EXPECT_TRUE(job_ && !aborted_);
    aborted_ = true;
  }
  void on(const DropSnapshots&) {}
  void on(const AdmitHolders&) {}
  void on(const StoreAt&) {}
  void on(const SaveSnapshots&) {}
  void on(const AgentLog&) {}
  void on(const EndAgent&) { ended_ = true; }

  void end_job(Outcome outcome) {
    const JobState job = *job_;
    job_.reset();
    aborted_ = false;
    handle(FromJob{done(job.run, job.epoch, outcome)});
  }

  // The scheduler reads up to `most` messages.
  void deliver(size_t most) {
    for (; most > 0 && !wire_.empty() && !ended_; --most) {
      const msg::ToSchedulerMessage message = std::move(wire_.front());
      wire_.pop_front();
      if (std::holds_alternative<msg::RegisterT>(message)) {
        registered_ = true;
        handle(FromScheduler{registered()});
      } else if (!registered_) {
        handle(FromScheduler{msg::RegisterAgainT{}});
      } else {
        std::visit([this](const auto& what) { read(what); }, message);
      }
    }
  }
  void read(const msg::HeartbeatT& beat) { handle(FromScheduler{msg::AliveT{{}, beat.number}}); }
  void read(const msg::RunDoneT& end) {
    if (!done_.insert({end.run, end.epoch}).second) return;  // was repeated
    grows(end.run, end.epoch);
    ++dones;
  }
  void read(const msg::PreparedT& message) {
    if (!prepared_.insert({message.run, message.epoch}).second) return;
    grows(message.run, message.epoch);
  }
  void read(const msg::RunEventT& message) {
    if (message.number <= last_number_) return;
    last_number_ = message.number;
    arrived_events_.push_back(message.json);
  }
  template <class Other>
  void read(const Other&) {}
  void grows(uint64_t run, uint32_t epoch) {
    EXPECT_GE(epoch, reported_[run]);
    reported_[run] = epoch;
  }

  void lose_connection() {
    wire_.resize(rng_.below(static_cast<uint32_t>(wire_.size()) + 1));
    deliver(wire_.size());
    registered_ = false;
    if (rng_.below(2) == 0) handle(ConnectionLost{});  // otherwise the agent notices it later
  }

  void ask() {
    if (!registered_) return;
    const uint64_t run = 1 + rng_.below(3);
    const uint32_t epoch = std::max(1u, latest_[run] + rng_.below(3) - (latest_[run] > 0 ? 1 : 0));
    latest_[run] = std::max(latest_[run], epoch);
    handle(FromScheduler{prepare(run, epoch)});
  }

  void one_event() {
    now_ += rng_.below(4) * 0.1;
    switch (rng_.below(14)) {
      case 0:
        return lose_connection();
      case 1:
      case 2:
        return ask();
      case 3:
        if (!job_ || job_->prepared) return;
        job_->prepared = true;
        return handle(FromJob{prepared(job_->run, job_->epoch)});
      case 4:
      case 5:
        if (job_ && registered_) handle(FromScheduler{start(job_->run, job_->epoch - rng_.below(2))});
        return;
      case 6:
        if (!job_) return;
        return end_job(aborted_ ? Outcome::Failed : static_cast<Outcome>(rng_.below(3)));
      case 7:
        if (!registered_) return;
        return handle(FromScheduler{msg::AbortT{{}, 1 + rng_.below(3), "", rng_.below(5)}});
      case 8:
        if (!registered_) return;
        return handle(FromScheduler{msg::StopT{{}, 1 + rng_.below(3), rng_.below(5)}});
      case 9:
        return tell_event();
      case 10:
        return deliver(rng_.below(4));
      default:
        deliver(1000);
        return handle(Tick{});
    }
  }

  void tell_event() {
    if (!job_) return;
    const std::string text = std::to_string(++told_);
    const size_t before = wire_.size();
    const bool was_registered = core_.is_registered();
    handle(FromJob{event(job_->run, text)});
    // The agent leaves out events of a job that has been replaced. While it is unregistered, the test cannot
    // see whether it did.
    if (was_registered && wire_.size() > before) told_events_.push_back(text);
    if (!was_registered) unsure_.insert(text);
  }

 public:
  // Events that were sent while there was no scheduler. They may belong to a job that was replaced.
  void settle_unsure() {
    std::vector<std::string> known;
    for (const std::string& text : arrived_events_)
      if (!unsure_.contains(text)) known.push_back(text);
    arrived_events_ = known;
  }

 private:
  Rng rng_;
  AgentCore core_{self()};
  double now_ = 10;
  bool registered_ = false, aborted_ = false, ended_ = false;
  std::deque<msg::ToSchedulerMessage> wire_;
  std::optional<JobState> job_;
  std::map<uint64_t, uint32_t> latest_, reported_;  // run -> epoch
  std::set<std::pair<uint64_t, uint32_t>> done_, prepared_;
  uint64_t last_number_ = 0;
  int told_ = 0;
  std::set<std::string> unsure_;
  std::vector<std::string> told_events_, arrived_events_;
};

TEST(AgentCoreStorm, NothingIsLostAndNothingIsDoneTwice) {
  int jobs = 0, dones = 0;
  for (uint64_t seed = 0; seed < 1000 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Storm storm(seed);
    storm.blow(300);
    storm.calm();
    storm.check_answers();
    storm.settle_unsure();
    storm.check_events();
    jobs += storm.jobs;
    dones += storm.dones;
  }
  EXPECT_GT(jobs, 1000);  // the storm must reach these cases
  EXPECT_GT(dones, 500);
}

TEST(AgentCoreStorm, WhoIsAskedToLeaveLeaves) {
  for (uint64_t seed = 0; seed < 1000 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Storm storm(seed);
    storm.blow(static_cast<int>(seed % 100));
    storm.leave();
  }
}

}  // namespace
}  // namespace modelet::agent::test
