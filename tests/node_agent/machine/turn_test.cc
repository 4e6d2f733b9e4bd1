// Turns: one process at a time, and no process waits for ever.
#include "node_agent/machine/turn.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "tests/processes.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

fs::path turn_folder() {
  const fs::path folder = fs::path(::testing::TempDir()) / "modelet_turn_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  ::chmod(folder.c_str(), 0700);
  return folder;
}

TEST(Turn, OneProcessAtATime) {
  const fs::path folder = turn_folder();
  const test::Shared<std::atomic<int>> inside, turns;
  const auto ends = test::run_processes(4, [&](int) {
    for (int round = 0; round < 5; ++round) {
      const auto turn = wait_for_turn(folder, "turn", 60);
      test::require(turn.has_value(), "no turn");
      test::require(++*inside == 1, "not alone");
      ::usleep(1000);
      --*inside;
      ++*turns;
    }
  });
  EXPECT_THAT(ends, ::testing::Each(0));
  EXPECT_EQ(*turns, 20);
}

TEST(Turn, WhoHoldsItKeepsOthersOnlySoLong) {
  const fs::path folder = turn_folder();
  const auto held = wait_for_turn(folder, "turn", 0);
  EXPECT_TRUE(held);
  EXPECT_FALSE(wait_for_turn(folder, "turn", 0.05));
  EXPECT_TRUE(wait_for_turn(folder, "another", 0));
}

TEST(Turn, AFolderThatCannotBeWrittenToIsDoneWithout) {
  EXPECT_FALSE(wait_for_turn("/proc", "turn", 60));  // root, too, cannot write there
}

TEST(Turn, AFolderThatOthersMayUseIsNotUsed) {
  const fs::path folder = turn_folder(), temporary = folder / "temporary";
  fs::create_directories(temporary);
  ::setenv("TMPDIR", temporary.c_str(), 1);
  ::setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  EXPECT_EQ(runtime_folder(), folder);
  ::chmod(folder.c_str(), 0777);
  const fs::path own = temporary / ("modelet-" + std::to_string(::geteuid()));
  EXPECT_EQ(runtime_folder(), own);
  ::chmod(own.c_str(), 0777);
  EXPECT_EQ(runtime_folder(), std::nullopt);
  fs::remove(own);
  fs::create_directory_symlink(folder, own);
  EXPECT_EQ(runtime_folder(), std::nullopt) << "a link";
  ::unsetenv("TMPDIR");
  ::unsetenv("XDG_RUNTIME_DIR");
}

}  // namespace
}  // namespace modelet::agent
