#include "node_agent/owner/owner_policy.h"

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <utility>
#include <vector>

namespace modelet::agent {
namespace {

constexpr int kNoon = 12 * 60;
constexpr double kCores = 4;
constexpr uint32_t kAll = 4;

// Calls the policy once a second.
class PolicyRun {
 public:
  explicit PolicyRun(Preferences preferences = {}, uint32_t threads = kAll) : policy(preferences, threads) {}

  Allowance second(double others, double pressure = -1, double cores = kCores) {
    now += 1;
    return last = policy.decide(now, minute, HostSample{cores, others, pressure});
  }
  // Returns the number of seconds until `wanted` holds; 1000: never.
  int seconds_until(const std::function<bool(const Allowance&)>& wanted, double others, double pressure = -1,
                    double cores = kCores) {
    for (int seconds = 1; seconds < 1000; ++seconds)
      if (wanted(second(others, pressure, cores))) return seconds;
    return 1000;
  }
  Allowance second_with_memory_pressure(double memory_pressure) {
    now += 1;
    return last = policy.decide(now, minute, HostSample{kCores, 0, 0, memory_pressure});
  }
  Allowance quiet(int seconds) {
    for (int i = 0; i < seconds; ++i) second(0);
    return last;
  }

  OwnerPolicy policy;
  double now = 1000;
  int minute = kNoon;
  Allowance last;
};

bool suspended(const Allowance& allowance) { return allowance.threads == 0; }
bool leaves(const Allowance& allowance) { return allowance.leave; }

struct Load {
  const char* what;
  std::vector<double> others;  // cores that others use, one entry a second
  uint32_t threads;            // that the policy grants at the end
  double pressure = -1;
  uint32_t lent = kAll;
};
std::ostream& operator<<(std::ostream& out, const Load& load) { return out << load.what; }

class LoadTest : public testing::TestWithParam<Load> {};

TEST_P(LoadTest, LeavesRoomForOthers) {
  PolicyRun run({}, GetParam().lent);
  for (const double others : GetParam().others) run.second(others, GetParam().pressure);
  EXPECT_EQ(run.last.threads, GetParam().threads);
  EXPECT_EQ(run.last.reason.empty(), GetParam().threads == GetParam().lent);
  EXPECT_FALSE(run.last.leave);
}

INSTANTIATE_TEST_SUITE_P(Tables, LoadTest,
                         testing::Values(Load{"nothing", {0, 0, 0, 0}, 4},
                                         Load{"noise", {0.1, 0.3, 0.4, 0.2}, 4},
                                         Load{"one short burst", {0, 4, 0, 0, 4, 0}, 4},
                                         Load{"half a core", {0.5, 0.5, 0.5}, 3},
                                         Load{"a core", {1.1, 1.1, 1.1}, 3}, Load{"two cores", {2.1, 2.1}, 2},
                                         Load{"all cores", {4, 4}, 0}, Load{"nearly all", {3.9, 3.9}, 0},
                                         Load{"room beside what is lent", {2, 2, 2, 2}, 2, -1, 2},
                                         Load{"no room beside it", {3, 3, 3, 3}, 1, -1, 2},
                                         // A busy link: something waits for a core, but only this process
                                         // works.
                                         Load{"own threads wait", {0.3, 0.3, 0.3, 0.3}, 4, 0.9},
                                         Load{"others wait", {2, 2, 2, 2}, 0, 0.9},
                                         Load{"others do not wait", {2, 2, 2, 2}, 2, 0.2}));

// Another group of processes gets half of the machine as long as this agent wants the other half.
TEST(OwnerPolicy, LetsGoWithinFiveSecondsOfWhoWouldTakeAll) {
  for (const double cores : {1.0, 2.0, 4.0, 16.0, 64.0}) {
    PolicyRun run({}, static_cast<uint32_t>(cores));
    double share = 1;
    uint32_t threads = static_cast<uint32_t>(cores);
    for (int second = 0; second < 5; ++second) {
      share = threads / (threads + cores);
      threads = run.second(cores * (1 - share), 1, cores).threads;
    }
    share = threads / (threads + cores);
    EXPECT_LT(share, 0.05) << cores;
  }
}

TEST(OwnerPolicy, ComesBackWithinHalfAMinuteButNotAtOnce) {
  PolicyRun run;
  run.seconds_until(suspended, kCores);
  const int back = run.seconds_until([](const Allowance& a) { return a.threads == kAll; }, 0.1);
  EXPECT_GT(back, 10);
  EXPECT_LE(back, 30);
}

TEST(OwnerPolicy, DoesNotComeBackBetweenBursts) {
  PolicyRun run;
  run.seconds_until(suspended, kCores);
  for (int burst = 0; burst < 5; ++burst) {
    for (int second = 0; second < 10; ++second) EXPECT_EQ(run.second(0).threads, 0u);
    run.second(kCores);
  }
}

TEST(OwnerPolicy, LeavesARunOfSeveralNodesBeforeTheyMissItAndStaysAway) {
  PolicyRun run;
  run.policy.set_peers(true);
  run.policy.pause(run.now, 120);
  EXPECT_EQ(run.seconds_until(leaves, 0), 1 + kPatienceWithPeers);
  run.policy.set_peers(false);  // it has left the run
  EXPECT_EQ(run.seconds_until([](const Allowance& allowance) { return !allowance.leave; }, 0), 120 - 4);

  Preferences hasty;
  hasty.back_off.patience_seconds = 1;
  PolicyRun other(hasty);
  other.policy.set_peers(true);
  other.policy.pause(other.now, {});
  EXPECT_EQ(other.seconds_until(leaves, 0), 2);
}

TEST(OwnerPolicy, LeavesItsRunAfterAWhileWithoutACore) {
  PolicyRun run;
  run.seconds_until(suspended, kCores);
  EXPECT_EQ(run.seconds_until(leaves, kCores), 60);
  EXPECT_TRUE(run.second(0).leave);
  EXPECT_FALSE(run.quiet(30).leave);
  EXPECT_EQ(run.last.threads, kAll);
}

TEST(OwnerPolicy, DoesNotComeBackToWhoWaitedForIt) {
  PolicyRun run;
  run.quiet(20);
  for (int second = 0; second < 5; ++second) run.second(2, 0.9);
  for (int second = 0; second < 10; ++second) EXPECT_EQ(run.second(2, 0).threads, 0u);
}

TEST(OwnerPolicy, OnlyAWhileWithoutABreakCounts) {
  PolicyRun run;
  for (int time = 0; time < 3; ++time) {
    for (int second = 0; second < 40; ++second) EXPECT_FALSE(run.second(kCores).leave);
    EXPECT_EQ(run.quiet(18).threads, kAll);
  }
}

TEST(OwnerPolicy, FewerThreadsAreNoReasonToLeave) {
  PolicyRun run;
  EXPECT_EQ(run.seconds_until(leaves, kCores / 2), 1000);
}

TEST(OwnerPolicy, LeavesAMachineThatIsShortOfMemory) {
  PolicyRun run;
  run.quiet(20);
  for (int second = 0; second < 5; ++second) EXPECT_EQ(run.second_with_memory_pressure(0.4).threads, kAll);
  EXPECT_TRUE(run.second_with_memory_pressure(0.4).leave) << "five seconds after the first sample";
  EXPECT_EQ(run.last.threads, 0u);
  EXPECT_EQ(run.last.reason, "the machine is short of memory");
}

TEST(OwnerPolicy, ComesBackWhenNobodyHasWaitedForMemoryForAWhile) {
  PolicyRun run;
  for (int second = 0; second < 10; ++second) run.second_with_memory_pressure(0.9);
  for (int second = 0; second < 10; ++second) EXPECT_TRUE(run.second_with_memory_pressure(0).leave);
  EXPECT_TRUE(run.second_with_memory_pressure(0.9).leave);
  for (int second = 0; second < 14; ++second) EXPECT_TRUE(run.second_with_memory_pressure(0.1).leave);
  EXPECT_FALSE(run.second_with_memory_pressure(0.1).leave);
  EXPECT_EQ(run.last.threads, kAll);
  EXPECT_TRUE(run.last.reason.empty());
}

TEST(OwnerPolicy, ShortWavesOfMemoryPressureDoNothing) {
  PolicyRun run;
  for (int wave = 0; wave < 10; ++wave) {
    for (int second = 0; second < 5; ++second) EXPECT_FALSE(run.second_with_memory_pressure(1).leave);
    run.second_with_memory_pressure(0.2);
  }
  for (int second = 0; second < 100; ++second) EXPECT_FALSE(run.second_with_memory_pressure(0.3).leave);
  for (int second = 0; second < 100; ++second) EXPECT_FALSE(run.second_with_memory_pressure(-1).leave);
}

TEST(OwnerPolicy, TheOwnerSaysHowMuchMemoryPressureIsTooMuch) {
  Preferences preferences;
  preferences.back_off.memory_pressure_percent = 100;
  PolicyRun run(preferences);
  for (int second = 0; second < 100; ++second) EXPECT_FALSE(run.second_with_memory_pressure(1).leave);
}

TEST(OwnerPolicy, NothingIsKnownOfOthers) {
  PolicyRun run;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(run.policy.decide(run.now += 1, kNoon, std::nullopt).threads, kAll);
}

TEST(OwnerPolicy, TheOwnerPauses) {
  PolicyRun run;
  run.quiet(20);
  run.policy.pause(run.now, 30);
  EXPECT_EQ(run.second(0).threads, 0u);
  EXPECT_EQ(run.last.reason, "paused by the owner");
  EXPECT_FALSE(run.last.leave);
  EXPECT_EQ(run.quiet(28).threads, 0u);
  EXPECT_EQ(run.second(0).threads, kAll);

  run.policy.pause(run.now, std::nullopt);
  EXPECT_TRUE(run.quiet(1000).leave);
  run.policy.resume();
  EXPECT_EQ(run.second(0).threads, kAll);
  EXPECT_FALSE(run.last.leave);
}

TEST(OwnerPolicy, TheOwnerDrains) {
  PolicyRun run;
  run.policy.drain();
  EXPECT_TRUE(run.second(0).leave);
  EXPECT_EQ(run.last.threads, 0u);
  EXPECT_EQ(run.last.reason, "the owner wants the machine");
  run.policy.resume();
  EXPECT_FALSE(run.second(0).leave);
}

TEST(OwnerPolicy, TheMachineIsLentAtNight) {
  Preferences preferences;
  preferences.hours = Hours{22 * 60, 6 * 60};
  PolicyRun run(preferences);
  for (const auto& [minute, lent] : std::vector<std::pair<int, bool>>{
           {kNoon, false}, {22 * 60 - 1, false}, {22 * 60, true}, {0, true}, {359, true}, {360, false}}) {
    run.minute = minute;
    EXPECT_EQ(run.second(0).threads, lent ? kAll : 0u) << minute;
    EXPECT_EQ(run.last.leave, !lent) << minute;
  }
  EXPECT_EQ(run.last.reason, "not lent at this hour");
}

}  // namespace
}  // namespace modelet::agent
