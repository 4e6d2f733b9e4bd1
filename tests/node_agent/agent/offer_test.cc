// What an agent offers, within what its owner lends.
#include <gtest/gtest.h>

#include "node_agent/agent/agent.h"
#include "node_agent/machine/capacity.h"

namespace modelet::agent {
namespace {

constexpr uint64_t kGibi = uint64_t{1} << 30;
constexpr double kMegabyte = 1e6;

// Nothing is left to measure.
AgentOptions with_speeds() {
  return {.cores = 8, .memory_bytes = 4 * kGibi, .gflops = 10, .bf16_gflops = 20, .memory_gbps = 5};
}

AgentOptions offered(AgentOptions options, const Preferences& preferences) {
  complete_offer(options, preferences);
  return options;
}

TEST(Offer, CoresAndMemoryWithinWhatIsLent) {
  const AgentOptions less = offered(with_speeds(), {.cores = 3, .memory_mib = 1024});
  EXPECT_EQ(less.cores, 3u);
  EXPECT_EQ(less.memory_bytes, kGibi);
  const AgentOptions lent_more = offered(with_speeds(), {.cores = 9, .memory_mib = 8192});
  EXPECT_EQ(lent_more.cores, 8u);
  EXPECT_EQ(lent_more.memory_bytes, 4 * kGibi);
}

TEST(Offer, WhatTheMachineHasIsLimitedToo) {
  AgentOptions open = with_speeds();
  open.cores = 0;
  open.memory_bytes = 0;
  EXPECT_EQ(offered(open, {}).cores, usable_cores());
  EXPECT_GT(offered(open, {}).memory_bytes, uint64_t{1} << 20);
  const AgentOptions least = offered(open, {.cores = 1, .memory_mib = 1});
  EXPECT_EQ(least.cores, 1u);
  EXPECT_EQ(least.memory_bytes, uint64_t{1} << 20);
}

TEST(Offer, TheLinkWithinWhatIsLent) {
  AgentOptions limited = offered(with_speeds(), {.link_mbps = 80});
  EXPECT_EQ(limited.link_bytes_per_second, 10 * kMegabyte);
  EXPECT_EQ(limited.cache.fetch_bytes_per_second, 10 * kMegabyte);
  constexpr double kNow = 100;
  EXPECT_NEAR(limited.sending->take(static_cast<uint64_t>(20 * kMegabyte), kNow), 2, 0.2) << "seconds";

  AgentOptions slow = with_speeds();
  slow.cache.fetch_bytes_per_second = kMegabyte;
  EXPECT_EQ(offered(slow, {.link_mbps = 80}).cache.fetch_bytes_per_second, kMegabyte);
  slow.cache.fetch_bytes_per_second = 20 * kMegabyte;
  EXPECT_EQ(offered(slow, {.link_mbps = 80}).cache.fetch_bytes_per_second, 10 * kMegabyte);
}

TEST(Offer, NoLimitOfTheLink) {
  const AgentOptions free = offered(with_speeds(), {});
  EXPECT_EQ(free.link_bytes_per_second, AgentOptions{}.link_bytes_per_second);
  EXPECT_EQ(free.cache.fetch_bytes_per_second, 0);
  EXPECT_EQ(free.sending->take(kGibi, 100), 0);
}

TEST(Offer, ASpeedInBf16IsThatInFp32UnlessItIsGiven) {
  EXPECT_EQ(offered(with_speeds(), {}).bf16_gflops, 20);
  AgentOptions options = with_speeds();
  options.bf16_gflops = 0;
  EXPECT_EQ(offered(options, {}).bf16_gflops, 10);
}

}  // namespace
}  // namespace modelet::agent
