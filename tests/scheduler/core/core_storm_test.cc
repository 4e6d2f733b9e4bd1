// Thousands of random events, well-formed but in any order. The invariants in core.h must hold after each; Core
// aborts if one does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/rng.h"
#include "tests/scheduler/core/core_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;

class Storm {
 public:
  explicit Storm(uint64_t seed) : rng_(seed) { pool_.plans_later = true; }

  void blow(int events) {
    for (int i = 0; i < events; ++i) {
      one_event();
      check();
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  // All agents fall silent and every run is asked to stop. After that no work may be left.
  void calm() {
    for (const auto& run : pool_.core.runs()) pool_.receive("client", msg::StopRunT{{}, run.run});
    for (int i = 0; i < 100; ++i) {
      pool_.pass(1);
      answer_a_plan();
      check();
    }
    EXPECT_TRUE(pool_.core.nodes().empty());
    for (const auto& run : pool_.core.runs())
      EXPECT_TRUE(has_ended(run.state)) << run.run << " " << run.detail;
  }

  int64_t finished_runs() const {
    return std::ranges::count(pool_.core.runs(), RunState::Finished, &msg::RunStatusT::state);
  }
  int runs_started = 0, replans = 0;

 private:
  std::string peer() { return "peer" + std::to_string(rng_.below(10)); }
  uint64_t run() {
    const auto runs = pool_.core.runs();
    return rng_.below(static_cast<uint32_t>((runs.empty() ? 0 : runs.back().run) + 2));
  }
  // Returns mostly the run that the peer works for, so that runs make progress.
  uint64_t run_of(const std::string& peer) {
    const auto found = work_.find(peer);
    return found == work_.end() || rng_.below(8) == 0 ? run() : found->second.run;
  }

  uint32_t epoch_of(const std::string& peer, uint64_t run) {
    const auto found = epochs_.find({peer, run});
    return rng_.below(10) == 0 || found == epochs_.end() ? 1 : found->second;
  }

  // Answers one of the requests for plans at some time. Some of them are no longer wanted.
  void answer_a_plan() {
    if (pool_.requests.empty()) return;
    const auto request = pool_.requests.begin() + rng_.below(static_cast<uint32_t>(pool_.requests.size()));
    const Planned answer = carry_out(*request);
    pool_.requests.erase(request);
    pool_.handle(answer);
  }

  // Sends an event of the run: nonsense, that the run stopped, or several reports of a slow node.
  void tell(const std::string& who) {
    const uint64_t run = run_of(who);
    const auto work = work_.find(who);
    if (work == work_.end() || rng_.below(8) == 0)
      return pool_.receive(who, msg::RunEventT{{}, run, rng_.below(2) == 0 ? "{}" : "[{"});
    if (rng_.below(3) == 0) return pool_.receive(who, event(run, msg::EventKind::Interrupted));
    std::vector<double> seconds(work->second.node_names.size(), 1);
    seconds[rng_.below(static_cast<uint32_t>(seconds.size()))] = 3;
    for (int i = 0; i < 3; ++i) pool_.receive(who, progress(run, seconds, 1e6));
  }

  // The agents of a run do what they should, up to a report, and stop if they are asked to.
  void work_together(uint64_t run) {
    const auto work = work_;
    for (const auto& [who, job] : work)
      if (job.run == run) pool_.receive(who, prepared(run, "tcp://" + who + ":1", job.epoch));
    for (const auto& [who, job] : work)
      if (job.run == run && job.rank == 0) tell(who);
    check();
    if (rng_.below(4) == 0) return;
    for (const auto& [who, job] : work) {
      if (!stopping_.contains({who, run}) || job.run != run) continue;
      if (job.rank == 0) pool_.receive(who, event(run, msg::EventKind::Interrupted));
      report_files(who, 0);
      pool_.receive(who, done(run, Outcome::Interrupted, 0, "", job.epoch));
    }
  }

  // The agent has the files of its rank.
  void report_files(const std::string& who, uint64_t step) {
    const auto found = work_.find(who);
    if (found == work_.end()) return;
    const msg::PrepareT& job = found->second;
    pool_.receive(who,
                  held(job.run, job.epoch, step, job.rank, {job.node_names[job.rank]}, rng_.below(2) == 0));
  }

  // Beside an agent that claims to be very fast, others may get no work.
  msg::RegisterT fast_or_slow(const std::string& name, uint64_t incarnation) {
    msg::RegisterT info = registration(name, incarnation);
    info.cores = 64;
    if (rng_.below(4) == 0) info.gflops = info.memory_gbps = 5000;
    return info;
  }

  void one_event() {
    const std::string who = peer();
    if (rng_.below(2) == 0) answer_a_plan();
    switch (rng_.below(15)) {
      case 0:
        return pool_.receive(who, fast_or_slow("node" + std::to_string(rng_.below(8)), rng_.below(3)));
      case 1:
        return pool_.receive(who, fast_or_slow("node" + who.substr(4), 1));
      case 2:
      case 3:
        return pool_.receive(who,
                             msg::HeartbeatT{{}, 0, rng_.below(4) == 0 ? 0 : run_of(who), rng_.below(100)});
      case 4:
      case 5: {
        const uint64_t run = run_of(who);
        return pool_.receive(
            who, prepared(run, rng_.below(20) == 0 ? "" : "tcp://" + who + ":1", epoch_of(who, run)));
      }
      case 6:
      case 7: {
        const uint64_t run = run_of(who);
        const bool stops = stopping_.contains({who, run}) || rng_.below(20) == 0;
        if (stops && rng_.below(4) > 0) pool_.receive(who, event(run, msg::EventKind::Interrupted));
        const auto outcome = rng_.below(20) == 0 ? Outcome::Failed
                             : stops             ? Outcome::Interrupted
                                                 : Outcome::Ok;
        const uint64_t step = rng_.below(100);
        if (rng_.below(4) > 0) report_files(who, step);
        return pool_.receive(who, done(run, outcome, step, "", epoch_of(who, run)));
      }
      case 8:
        return rng_.below(4) == 0 ? pool_.receive(who, msg::LeaveT{})
                                  : pool_.receive(who, msg::RunEventT{{}, run_of(who), "{}"});
      case 12:
        return tell(who);
      case 13:
        return work_together(run_of(who));
      case 9:
        return pool_.receive("client", submission(rng_.below(4)));
      case 10:
        return rng_.below(2) == 0 ? pool_.receive("client", msg::WatchT{{}, run()})
                                  : pool_.handle(PeerGone{rng_.below(2) == 0 ? "client" : who});
      case 11:
        if (rng_.below(4) == 0) pool_.receive("client", msg::StopRunT{{}, run()});
        return;
      default:
        pool_.now += rng_.below(4) == 0 ? rng_.below(3) : 0;
        return pool_.handle(Tick{});
    }
  }

  void check() {
    for (const auto& [who, messages] : pool_.inbox)
      for (const auto& message : messages) follow(who, message);
    pool_.inbox.clear();
  }

  // Notes what an agent would make of a message.
  void follow(const std::string& who, const msg::FromSchedulerMessage& message) {
    if (const auto* prepare = std::get_if<msg::PrepareT>(&message)) {
      work_[who] = *prepare;
      epochs_[{who, prepare->run}] = prepare->epoch;
      stopping_.erase({who, prepare->run});
      if (prepare->rank == 0 && prepare->epoch > 1) ++replans;
      ++runs_started;
    }
    if (const auto* stop = std::get_if<msg::StopT>(&message)) stopping_.insert({who, stop->run});
  }

  Rng rng_;
  Harness pool_{CoreOptions{.replan_after = 0}};
  std::map<std::string, msg::PrepareT> work_;
  std::map<std::pair<std::string, uint64_t>, uint32_t>
      epochs_;  // in which a peer was last asked to work for a run
  std::set<std::pair<std::string, uint64_t>> stopping_;
};

class CoreStorm : public testing::TestWithParam<uint64_t> {};

TEST_P(CoreStorm, KeepsItsInvariants) {
  Storm storm(GetParam());
  storm.blow(6000);
  storm.calm();
  EXPECT_GT(storm.runs_started, 10) << "the storm must reach the interesting states";
  EXPECT_GT(storm.finished_runs(), 0);
  EXPECT_GT(storm.replans, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CoreStorm, testing::Range<uint64_t>(1, 11));

}  // namespace
}  // namespace modelet::scheduler::test
