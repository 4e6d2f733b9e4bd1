#include "node_agent/machine/capacity.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <optional>

#include "base/error.h"
#include "node_agent/machine/turn.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

// The folder of turns is one of this test, and nobody else uses it.
class CapacityTest : public ::testing::Test {
 protected:
  CapacityTest() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    ::chmod(folder_.c_str(), 0700);
    ::setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);
  }
  ~CapacityTest() override { ::unsetenv("XDG_RUNTIME_DIR"); }

  const fs::path folder_ = fs::path(::testing::TempDir()) / "modelet_capacity_test";
};

TEST_F(CapacityTest, AgentsMeasureOneAfterTheOther) {
  // Several times what a measurement takes. A slow machine can only hide that nobody waits.
  constexpr auto kHeld = std::chrono::seconds(3);
  std::optional<FileLock> turn = wait_for_turn(folder_, "measuring.lock", 0);
  ASSERT_TRUE(turn);
  std::future<Speed> speed = std::async(std::launch::async, [] { return measure_speed(1); });
  EXPECT_EQ(speed.wait_for(kHeld), std::future_status::timeout) << "it does not wait for its turn";
  turn.reset();
  EXPECT_GT(speed.get().gflops, 0);
}

// Other limits may be known; what is not known is none.
TEST(UsableMemoryTest, AMachineThatDoesNotTellHasNoLimit) {
  const auto usable = usable_memory();
  ASSERT_TRUE(usable);
  const auto unknown = usable_memory("/no/such/meminfo");
  EXPECT_TRUE(!unknown || unknown->limit != "this machine");
  EXPECT_THROW(require_memory(usable->bytes + (uint64_t{1} << 50), "a test", "take less"), Error);
}

}  // namespace
}  // namespace modelet::agent
