#include "node_agent/step/micro_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/rng.h"

namespace modelet::agent {
namespace {

constexpr uint64_t kFirstTrialEnds = MicroBatches::kWarmUp + MicroBatches::kTrial;

using StepSeconds = std::function<double(uint32_t count)>;

// Returns the numbers of micro-batches in the steps [first, last) of a session.
std::vector<uint32_t> run(MicroBatches& rank, uint64_t first, uint64_t last, const StepSeconds& seconds) {
  std::vector<uint32_t> numbers;
  for (uint64_t step = first; step < last; ++step) {
    numbers.push_back(rank.now());
    rank.end_step(rank.next(), seconds(rank.now()));
  }
  return numbers;
}

double fastest_with(uint32_t best, uint32_t count) { return count == best ? 0.9 : 1.0; }

TEST(MicroBatches, TheNumberOfTheExperimentStays) {
  MicroBatches rank(3);
  EXPECT_THAT(run(rank, 0, 2000, [](uint32_t) { return 1.0; }), ::testing::Each(3u));
}

TEST(MicroBatches, TriesAllNumbersAndKeepsTheFastest) {
  for (uint32_t best = 1; best <= kTriedMicroBatches; ++best) {
    MicroBatches rank(0);
    const auto seconds = [&](uint32_t count) { return fastest_with(best, count); };
    run(rank, 0, MicroBatches::kWarmUp, seconds);
    const auto trial = run(rank, MicroBatches::kWarmUp, kFirstTrialEnds, seconds);
    for (uint32_t number = 1; number <= kTriedMicroBatches; ++number)
      EXPECT_EQ(std::ranges::count(trial, number), MicroBatches::kTurns) << number;
    const auto after = run(rank, kFirstTrialEnds, MicroBatches::kWarmUp + MicroBatches::kPeriod, seconds);
    EXPECT_THAT(after, ::testing::Each(best));
  }
}

TEST(MicroBatches, SlowWarmUpAndOutliersDoNotDecide) {
  Rng rng(7, {});
  for (uint32_t best = 1; best <= kTriedMicroBatches; ++best) {
    MicroBatches rank(0);
    run(rank, 0, MicroBatches::kWarmUp, [&](uint32_t count) { return count == best ? 100.0 : 1.0; });
    run(rank, MicroBatches::kWarmUp, kFirstTrialEnds, [&](uint32_t count) {
      const double outlier = rng.uniform() < 0.2 ? 10 : 0;
      return fastest_with(best, count) + 0.02 * rng.uniform() + outlier;
    });
    EXPECT_EQ(rank.now(), best);
  }
}

TEST(MicroBatches, FewerWhereMoreBringNothing) {
  MicroBatches rank(0);
  run(rank, 0, kFirstTrialEnds, [](uint32_t count) { return 1.0 - 0.001 * count; });
  EXPECT_EQ(rank.now(), 1u);
}

TEST(MicroBatches, FollowsWhatChangesAtTheNextTrial) {
  MicroBatches rank(0);
  constexpr uint64_t kSecond = MicroBatches::kWarmUp + MicroBatches::kPeriod;
  run(rank, 0, kSecond, [](uint32_t count) { return fastest_with(1, count); });
  run(rank, kSecond, kSecond + MicroBatches::kTrial, [](uint32_t count) { return fastest_with(4, count); });
  EXPECT_EQ(rank.now(), 4u);
}

// Each rank finds another number the fastest; all split as rank 0 says.
TEST(MicroBatches, RanksFollowTheFirst) {
  MicroBatches first(0), other(0);
  for (uint64_t step = 0; step < 2 * MicroBatches::kPeriod; ++step) {
    ASSERT_EQ(first.now(), other.now()) << step;
    const uint32_t told = first.next();
    first.end_step(told, fastest_with(2, first.now()));
    other.end_step(told, fastest_with(4, other.now()));
  }
  EXPECT_EQ(other.now(), 2u);
}

// A number from a peer that is out of range is brought into the range.
TEST(MicroBatches, ANumberOutOfRangeIsBroughtBack) {
  for (const uint32_t told : {0u, 8u, 9u, 1u << 31}) {
    MicroBatches rank(0), fixed(2);
    for (uint64_t step = 0; step < 2 * MicroBatches::kPeriod; ++step) {
      rank.end_step(told, 1);
      fixed.end_step(told, 1);
      ASSERT_GE(rank.now(), 1u);
      ASSERT_LE(rank.now(), kTriedMicroBatches);
      ASSERT_LE(fixed.now(), kMaxMicroBatches);
    }
  }
}

}  // namespace
}  // namespace modelet::agent
