// Thousands of random histories of one pool. Nodes die, return, wish to leave and report snapshots, and the
// scheduler restarts from what it had written down. What core.h promises must hold after each event, and
// every run must end once the faults have ended.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/rng.h"
#include "tests/scheduler/core/core_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;

constexpr uint64_t kLastStep = 40;
constexpr int kNodes = 6;

// Agents that behave like agents: each knows the group that it works for, and goes on working without the
// scheduler.
class Churn {
 public:
  explicit Churn(uint64_t seed) : rng_(seed) {
    for (int i = 0; i < kNodes; ++i) agents_["n" + std::to_string(i)] = {};
  }

  void blow(int seconds) {
    for (int i = 0; i < seconds && !testing::Test::HasFatalFailure(); ++i) {
      disturb();
      second();
    }
  }
  // No more faults: the remaining runs must end.
  void calm() {
    for (auto& [name, agent] : agents_) agent.alive = true;
    for (int i = 0; i < 1500 && !all_ended(); ++i) second();
    for (const auto& run : pool_.core.runs()) {
      EXPECT_TRUE(has_ended(run.state))
          << run.run << ": " << state_name(run.state) << " " << run.detail << "\n"
          << pool_.log.substr(pool_.log.size() - std::min<size_t>(3000, pool_.log.size()));
      finished += run.state == RunState::Finished;
      recoveries += run.recoveries;
    }
  }

  int finished = 0, restarts = 0;
  uint32_t recoveries = 0;

 private:
  struct Agent {
    bool alive = true, registered = false, leaving = false;
    uint64_t incarnation = 1, run = 0, step = 0;
    uint32_t epoch = 0, rank = 0, size = 0;
    bool started = false, told_end = false, stops = false;
    std::vector<std::string> members;
    std::vector<msg::ToSchedulerMessage> unconfirmed;
  };

  void disturb() {
    const std::string name = "n" + std::to_string(rng_.below(kNodes));
    Agent& agent = agents_[name];
    switch (rng_.below(14)) {
      case 0:  // dies, with all its unsent reports
        agent = {.alive = false, .incarnation = agent.incarnation + 1};
        pool_.inbox[name].clear();
        if (rng_.below(2) == 0) pool_.handle(PeerGone{name});
        return;
      case 1:
      case 2:
        agent.alive = true;
        return;
      case 3:
        if (agent.registered && rng_.below(2) == 0) pool_.receive(name, msg::LeaveRequestT{{}, 60, "test"});
        return;
      case 4:
        if (rng_.below(3) == 0) pool_.receive("client", submission(rng_.below(4)));
        return;
      case 5:
        if (rng_.below(2) == 0) restart();
        return;
      case 6:
        if (agent.run != 0)
          pool_.receive(name,
                        msg::PeerMissedT{
                            {}, agent.run, agent.epoch, rng_.below(agent.size), "test", false, agent.step});
        return;
      case 7:  // repeats a message, perhaps much later
        if (!agent.unconfirmed.empty())
          pool_.receive(name, agent.unconfirmed[rng_.below(static_cast<uint32_t>(agent.unconfirmed.size()))]);
        return;
      default:
        return;
    }
  }

  void restart() {
    ++restarts;
    pool_.restart();
    pool_.inbox.clear();
    for (auto& [name, agent] : agents_) agent.registered = false;
  }

  void second() {
    pool_.now += 1;
    for (auto& [name, agent] : agents_)
      if (agent.alive) act(name, agent);
    pool_.handle(Tick{});
    for (auto& [name, agent] : agents_) follow_all(name, agent);
    check();
  }

  void tell(const std::string& name, Agent& agent, msg::ToSchedulerMessage message) {
    agent.unconfirmed.push_back(message);
    if (agent.unconfirmed.size() > 8) agent.unconfirmed.erase(agent.unconfirmed.begin());
    if (agent.registered) pool_.receive(name, std::move(message));
  }

  void act(const std::string& name, Agent& agent) {
    if (!agent.registered) {
      msg::RegisterT info = registration(name, agent.incarnation);
      info.holder_endpoint = "tcp://" + name + ":9";
      if (!agent.told_end) {
        info.run = agent.run;
        info.epoch = agent.epoch;
      }
      pool_.receive(name, info);
    } else {
      const bool works = agent.run != 0 && !agent.told_end;
      pool_.receive(name,
                    msg::HeartbeatT{{}, 0, works ? agent.run : 0, agent.step, works ? agent.epoch : 0, 1});
    }
    follow_all(name, agent);
    if (agent.registered) work(name, agent);
  }

  void work(const std::string& name, Agent& agent) {
    if (agent.run == 0 || !agent.started || agent.told_end) return;
    ++agent.step;
    const bool ends = agent.step >= kLastStep || agent.stops;
    if (agent.step % 5 == 0 || ends) {
      const std::string other = agent.members[(agent.rank + 1) % agent.size];
      tell(name, agent, held(agent.run, agent.epoch, agent.step, agent.rank, {name, other}, ends));
    }
    if (!ends) return;
    agent.told_end = true;
    tell(name, agent,
         done(agent.run, agent.step >= kLastStep ? Outcome::Ok : Outcome::Interrupted, agent.step, "",
              agent.epoch));
  }

  void follow_all(const std::string& name, Agent& agent) {
    for (const auto& message : std::exchange(pool_.inbox[name], {}))
      if (agent.alive) follow(name, agent, message);
  }

  void follow(const std::string& name, Agent& agent, const msg::FromSchedulerMessage& message) {
    if (std::holds_alternative<msg::RegisterAgainT>(message)) agent.registered = false;
    if (std::holds_alternative<msg::RegisteredT>(message)) {
      agent.registered = true;
      for (const auto& old : std::vector(agent.unconfirmed)) pool_.receive(name, old);
    }
    if (std::holds_alternative<msg::ReleasedT>(message)) {
      pool_.receive(name, msg::LeaveT{});
      agent = {.alive = false, .incarnation = agent.incarnation + 1};
    }
    if (const auto* prepare = std::get_if<msg::PrepareT>(&message)) take(name, agent, *prepare);
    if (const auto* start = std::get_if<msg::StartT>(&message);
        start != nullptr && start->run == agent.run && start->epoch == agent.epoch)
      agent.started = true;
    if (const auto* stop = std::get_if<msg::StopT>(&message);
        stop != nullptr && stop->run == agent.run && stop->epoch == agent.epoch)
      agent.stops = true;
    if (const auto* abort = std::get_if<msg::AbortT>(&message);
        abort != nullptr && abort->run == agent.run && abort->epoch == agent.epoch && !agent.told_end) {
      agent.told_end = true;
      msg::RunDoneT failed = done(agent.run, Outcome::Failed, agent.step, "aborted", agent.epoch);
      failed.retry = true;
      tell(name, agent, failed);
    }
    if (const auto* stable = std::get_if<msg::StableT>(&message)) {
      const auto& status = pool_.run(stable->run);
      EXPECT_GE(status.stable_step, stable->step);
    }
  }

  void take(const std::string& name, Agent& agent, const msg::PrepareT& prepare) {
    if (prepare.run == agent.run && prepare.epoch <= agent.epoch) return;
    EXPECT_TRUE(agent.run == 0 || agent.told_end || agent.run == prepare.run) << "bound twice";
    uint64_t from = 0;
    if (prepare.snapshot != nullptr) {
      const comm::Snapshot snapshot = msg::snapshot_of(*prepare.snapshot);
      from = snapshot.step;
      for (const auto& file : snapshot.files)
        EXPECT_TRUE(std::ranges::any_of(
            file.holders, [&](const std::string& holder) { return !pool_.node(holder).name.empty(); }))
            << "nobody has " << file.name;
    }
    agent.run = prepare.run;
    agent.epoch = prepare.epoch;
    agent.rank = prepare.rank;
    agent.size = prepare.size;
    agent.members = prepare.node_names;
    agent.step = from;
    agent.started = agent.told_end = agent.stops = false;
    agent.unconfirmed.clear();
    tell(name, agent, prepared(prepare.run, "tcp://" + name + ":1", prepare.epoch));
  }

  void check() {
    std::set<std::string> names;
    for (const auto& node : pool_.core.nodes()) ASSERT_TRUE(names.insert(node.name).second);
    for (const auto& run : pool_.core.runs()) {
      std::set<std::string> members(run.node_names.begin(), run.node_names.end());
      ASSERT_EQ(members.size(), run.node_names.size()) << "a node has two ranks";
      auto& [epoch, state] = last_[run.run];
      ASSERT_GE(run.epoch, epoch) << "invariant 4";
      ASSERT_TRUE(!has_ended(state) || state == run.state) << "invariant 2";
      epoch = run.epoch;
      state = run.state;
    }
  }

  bool all_ended() {
    return std::ranges::all_of(pool_.core.runs(), [](const auto& run) { return has_ended(run.state); });
  }

  Rng rng_;
  Harness pool_{CoreOptions{.hold_grace = 100}};
  std::map<std::string, Agent> agents_;
  std::map<uint64_t, std::pair<uint32_t, RunState>> last_;
};

class CoreChurn : public testing::TestWithParam<uint64_t> {};

TEST_P(CoreChurn, EveryRunEnds) {
  Churn churn(GetParam());
  churn.blow(600);
  churn.calm();
  EXPECT_GT(churn.finished, 0);
  EXPECT_GT(churn.recoveries, 3u);
  EXPECT_GT(churn.restarts, 3);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CoreChurn, testing::Range<uint64_t>(1, 11));

}  // namespace
}  // namespace modelet::scheduler::test
