#include "node_agent/machine/host_load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

const double kTicks = static_cast<double>(::sysconf(_SC_CLK_TCK));  // in a second
constexpr int kSelf = 100;

// A /proc with two CPUs that this process may use, and a third one.
class HostLoadTest : public testing::Test {
 protected:
  HostLoadTest() {
    fs::remove_all(proc_);
    fs::create_directories(proc_ / "pressure");
    process(kSelf, "modelet-agent", 1, 0);
    machine(0, 0);
  }

  // Sets the seconds that each CPU has worked so far: half in user mode, half in the kernel.
  void machine(double each, double stolen) {
    std::ofstream file(proc_ / "stat");
    file << "cpu  1 2 3 4 5 6 7 8 0 0\n";
    for (int cpu = 0; cpu < 3; ++cpu) {
      const long ticks = static_cast<long>((cpu == 2 ? 1000 * each : each) * kTicks / 2);
      file << "cpu" << cpu << ' ' << ticks << " 0 " << ticks << " 999 999 0 0 "
           << static_cast<long>(stolen * kTicks) << " 0 0\n";
    }
    file << "intr 12 0 0\n";
  }
  void process(int id, const std::string& name, int nice, double seconds) {
    const fs::path folder = proc_ / std::to_string(id);
    fs::create_directories(folder);
    const long ticks = static_cast<long>(seconds * kTicks / 2);
    std::ofstream(folder / "stat") << id << " (" << name << ") S 1 1 1 0 -1 0 0 0 0 0 " << ticks << ' '
                                   << ticks << " 0 0 20 " << nice << " 9 0 0 0\n";
  }
  void may_use(int id, const std::string& cpus) {
    std::ofstream(proc_ / std::to_string(id) / "status")
        << "Name:\tmodelet-agent\nCpus_allowed:\tff\nCpus_allowed_list:\t" << cpus << "\nMems_allowed:\t1\n";
  }
  void pressure(double seconds, const char* of = "cpu") {
    std::ofstream(proc_ / "pressure" / of)
        << "some avg10=0.00 avg60=0.00 avg300=0.00 total=" << static_cast<long>(seconds * 1e6)
        << "\nfull avg10=0\n";
  }

  const fs::path proc_ = fs::path(testing::TempDir()) / "host_load_proc";
};

TEST_F(HostLoadTest, OthersAreAllButAgentsThatGiveWay) {
  process(7, "modelet-agent", 1, 50);
  process(8, "modelet-agent", 0, 50);  // works for the owner
  process(9, "a) (b", 0, 50);
  pressure(3);
  HostLoad load(proc_, {0, 1}, kSelf);
  EXPECT_FALSE(load.sample(10));

  machine(10, 0);  // of two CPUs: 20 seconds
  process(kSelf, "modelet-agent", 1, 6);
  process(7, "modelet-agent", 1, 54);
  process(8, "modelet-agent", 0, 58);
  process(9, "a) (b", 0, 52);
  pressure(5);
  const auto sample = load.sample(20);
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->cores, 2);
  EXPECT_NEAR(sample->others, 1, 0.01);
  EXPECT_NEAR(sample->pressure, 0.2, 0.001);

  fs::remove_all(proc_ / "7");  // this process has ended
  machine(11, 2);               // one second each, and two that were stolen
  const auto next = load.sample(30);
  ASSERT_TRUE(next);
  EXPECT_NEAR(next->others, 0.6, 0.01);
}

TEST_F(HostLoadTest, OfAgentsOnlyTheTimeOnTheSameCpusCounts) {
  for (const int id : {7, 8, 9}) process(id, "modelet-agent", 1, 50);
  may_use(7, "1");
  may_use(8, "2,4-9");  // none of ours
  may_use(9, "0-1,6-7");
  HostLoad load(proc_, {0, 1}, kSelf);
  load.sample(10);

  machine(10, 0);  // of two CPUs: 20 seconds
  process(7, "modelet-agent", 1, 55);
  process(8, "modelet-agent", 1, 70);
  process(9, "modelet-agent", 1, 54);  // half of them here
  const auto sample = load.sample(20);
  ASSERT_TRUE(sample);
  EXPECT_NEAR(sample->others, (20 - 5 - 2) / 10.0, 0.01);
}

TEST_F(HostLoadTest, WhatTheSystemDoesNotShow) {
  HostLoad load(proc_, {0, 1}, kSelf);
  load.sample(10);
  machine(1, 0);
  ASSERT_TRUE(load.sample(20));
  EXPECT_EQ(load.sample(30)->pressure, -1);
  EXPECT_FALSE(load.sample(30)) << "no time has passed";
  fs::remove(proc_ / "stat");
  EXPECT_FALSE(load.sample(40));
  std::ofstream(proc_ / "stat") << "cpu0 garbage\ncpu1 1 2\nx";
  EXPECT_FALSE(load.sample(50));
}

TEST_F(HostLoadTest, WaitingForMemory) {
  pressure(3, "memory");
  HostLoad load(proc_, {0, 1}, kSelf);
  load.sample(10);
  pressure(7, "memory");
  EXPECT_NEAR(load.sample(20)->memory_pressure, 0.4, 0.001);
  EXPECT_EQ(load.sample(30)->memory_pressure, 0);
  EXPECT_EQ(load.sample(40)->pressure, -1) << "that of cores is another one";
  fs::remove(proc_ / "pressure" / "memory");
  EXPECT_EQ(load.sample(50)->memory_pressure, -1);
  pressure(9, "memory");
  EXPECT_EQ(load.sample(60)->memory_pressure, -1) << "nothing to compare it with";
}

TEST_F(HostLoadTest, ThisMachine) {
  HostLoad load;
  load.sample(0);
  const auto sample = load.sample(1);
  ASSERT_TRUE(sample);
  EXPECT_GE(sample->cores, 1);
  EXPECT_GE(sample->others, 0);
}

}  // namespace
}  // namespace modelet::agent
