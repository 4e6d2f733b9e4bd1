// Limits of control groups, read from folders that look like those of the kernel.
#include "node_agent/machine/cgroup.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>

#include "tests/shard/data_testing.h"

namespace modelet::agent::testing {
namespace {

class CgroupTest : public ::testing::Test {
 protected:
  // `self` is the content of /proc/self/cgroup.
  explicit CgroupTest(const std::string& self) { write("self", self); }
  CgroupTest() : CgroupTest("0::/outer/inner\n") {}

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  CgroupFiles files() const { return {.root = folder_ / "root", .self = folder_ / "self"}; }

 private:
  shard::testing::TemporaryFolder folder_;
};

TEST_F(CgroupTest, NoLimitWithoutFiles) {
  EXPECT_TRUE(std::isinf(cgroup_cores(files())));
  EXPECT_TRUE(std::isinf(cgroup_memory(files()).bytes));
  EXPECT_TRUE(std::isinf(cgroup_memory({.root = "/nowhere", .self = "/nowhere"}).bytes));
}

TEST_F(CgroupTest, TheTightestOnTheWayUp) {
  write("root/outer/inner/cpu.max", "max 100000\n");
  write("root/outer/cpu.max", "150000 100000\n");
  write("root/cpu.max", "300000 100000\n");
  EXPECT_EQ(cgroup_cores(files()), 1.5);

  write("root/outer/inner/memory.max", "max\n");
  EXPECT_TRUE(std::isinf(cgroup_memory(files()).bytes));
  write("root/outer/memory.max", "1000\n");
  write("root/outer/memory.current", "300\n");
  EXPECT_EQ(cgroup_memory(files()).bytes, 700);
  write("root/outer/inner/memory.max", "800\n");
  write("root/outer/inner/memory.current", "200\n");
  EXPECT_EQ(cgroup_memory(files()).bytes, 600);
  EXPECT_TRUE(cgroup_memory(files()).limit.ends_with("root/outer/inner/memory.max"));
  // Above this one the kernel makes processes wait until they have given pages back.
  write("root/outer/memory.high", "800\n");
  EXPECT_EQ(cgroup_memory(files()).bytes, 500);
  EXPECT_TRUE(cgroup_memory(files()).limit.ends_with("root/outer/memory.high"));
}

TEST_F(CgroupTest, UnusedFilePagesAreFree) {
  write("root/outer/inner/memory.max", "1000\n");
  write("root/outer/inner/memory.current", "900\n");
  write("root/outer/inner/memory.stat", "anon 200\nfile 700\ninactive_file 600\nactive_file 100\n");
  EXPECT_EQ(cgroup_memory(files()).bytes, 700);
  write("root/outer/inner/memory.current", "1100\n");  // over the limit, which was lowered
  write("root/outer/inner/memory.stat", "inactive_file 0\n");
  EXPECT_EQ(cgroup_memory(files()).bytes, 0);
}

// Each controller of v1 has a hierarchy of its own.
class OldCgroupTest : public CgroupTest {
 protected:
  OldCgroupTest()
      : CgroupTest(
            "12:cpuset:/elsewhere\n7:memory:/outer/jobs\n3:cpu,cpuacct:/outer\n1:name=systemd:/x\n0::/x\n") {}
};

TEST_F(OldCgroupTest, QuotaOfCores) {
  write("root/cpu/cpu.cfs_quota_us", "-1\n");
  write("root/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_TRUE(std::isinf(cgroup_cores(files())));
  write("root/cpu/outer/cpu.cfs_quota_us", "50000\n");
  write("root/cpu/outer/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cores(files()), 0.5);
}

TEST_F(OldCgroupTest, Memory) {
  write("root/memory/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  write("root/memory/outer/jobs/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_GT(cgroup_memory(files()).bytes, 9e18);
  write("root/memory/outer/memory.limit_in_bytes", "1000\n");
  write("root/memory/outer/memory.usage_in_bytes", "600\n");
  write("root/memory/outer/memory.stat", "cache 300\ninactive_file 0\ntotal_inactive_file 200\n");
  EXPECT_EQ(cgroup_memory(files()).bytes, 600);
  write("root/memory/outer/jobs/memory.limit_in_bytes", "500\n");
  EXPECT_EQ(cgroup_memory(files()).bytes, 500);
  // Only the hierarchy of the memory controller counts.
  write("root/memory/elsewhere/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(cgroup_memory(files()).bytes, 500);
}

// In a container the paths of the host may not exist: the group of the container is the root there.
TEST_F(OldCgroupTest, InAContainer) {
  write("root/memory/memory.limit_in_bytes", "700\n");
  write("root/cpu/cpu.cfs_quota_us", "200000\n");
  write("root/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_memory(files()).bytes, 700);
  EXPECT_EQ(cgroup_cores(files()), 2);
}

}  // namespace
}  // namespace modelet::agent::testing
