// A process that writes a checkpoint is killed at each of its calls that change the file system. Afterwards
// there must be a complete checkpoint, and the next attempt must succeed and leave no debris.
//
// Wrappers in this program, which take precedence over the functions of the C library, count the calls.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "tests/shard/modelet/sample_checkpoint.h"

namespace {

constexpr int kCrashed = 99;
int calls_until_crash = 0;  // 0: never

void count_call() {
  if (calls_until_crash > 0 && --calls_until_crash == 0) ::_exit(kCrashed);
}

}  // namespace

extern "C" {
int rename(const char* from, const char* to) noexcept {
  count_call();
  return static_cast<int>(::syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}
int fsync(int) {  // only counted: a killed process loses no writes, and disks are slow
  count_call();
  return 0;
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  count_call();
  return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags));
}
int mkdir(const char* path, mode_t mode) noexcept {
  count_call();
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
}

namespace modelet::shard {
namespace {

namespace fs = std::filesystem;

// Runs `write` in a child that dies at its n-th call; returns whether it died.
template <class Write>
bool crashes_at(int n, const Write& write) {
  const pid_t child = ::fork();
  if (child == 0) {
    calls_until_crash = n;
    write();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_TRUE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == kCrashed) << status;
  return WEXITSTATUS(status) == kCrashed;
}

// Checks that the newest checkpoint is complete. Returns its step.
uint64_t newest_step(const fs::path& run) {
  const Checkpoint checkpoint = Checkpoint::open(find_checkpoint(run));
  for (const CheckpointEntry& entry : checkpoint.index().modelets) {
    const SafetensorsFile file = checkpoint.open_modelet(entry.spec);
    EXPECT_EQ(file.values<float>("weight", {entry.spec.neurons(), entry.spec.inputs})[0],
              static_cast<float>(entry.spec.id + checkpoint.index().step));
  }
  return checkpoint.index().step;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

// Kills the writing of step `step` at every point, each time from the same start: step 10 exists and, if
// `again`, step 20.
void crash_everywhere(uint64_t step, bool again) {
  const fs::path run = testing::TempDir() + "modelet_checkpoint_crash_test",
                 checkpoints = run / "checkpoints";
  int point = 0;
  for (bool crashed = true; crashed;) {
    fs::remove_all(run);
    write_sample_checkpoint(checkpoints, 10, 1);
    if (again) write_sample_checkpoint(checkpoints, 20, 1);
    crashed = crashes_at(++point, [&] { write_sample_checkpoint(checkpoints, step, 1); });

    const uint64_t found = newest_step(run);
    EXPECT_TRUE(found == (again ? 20 : 10) || found == step)
        << "crash at call " << point << ": found step " << found;
    EXPECT_TRUE(crashed || found == step);
    write_sample_checkpoint(checkpoints, 30, 1);
    EXPECT_EQ(newest_step(run), 30u);
    EXPECT_EQ(names_in(checkpoints), std::set<std::string>{"step-0000000030"}) << "crash at call " << point;
    ASSERT_FALSE(testing::Test::HasFailure());
    ASSERT_LT(point, 1000);
  }
  EXPECT_GT(point, 15) << "the wrappers count nothing";
  fs::remove_all(run);
}

TEST(CheckpointCrash, WritingTheNextStep) { crash_everywhere(20, false); }
TEST(CheckpointCrash, ReplacingTheOnlyCheckpoint) { crash_everywhere(20, true); }

// The part of a snapshot that a rank has in its own folder is there with all its files or not at all, and
// earlier parts stay as they are. `again`: step 20 was written before.
void crash_everywhere_in_a_part(bool again) {
  const fs::path run = testing::TempDir() + "modelet_checkpoint_crash_test",
                 checkpoints = run / "checkpoints", before = checkpoint_of_step(checkpoints, 10),
                 next = checkpoint_of_step(checkpoints, 20);
  const CheckpointIndex index = sample_index(0);
  const std::vector<ModeletSpec> partition = partition_model(index.experiment, index.shape);
  const std::set<std::string> files = {modelet_file(partition[1]), modelet_file(partition[2])};
  const auto write = [&](uint64_t step) {
    const CheckpointWriter writer(checkpoints, step, CheckpointWriter::Folder::kPrivate);
    for (const size_t modelet : {1, 2}) write_sample_modelet(writer, partition[modelet], step);
    if (step == 20) writer.add(before / modelet_file(partition[1]), "best");
    writer.commit_part();
  };
  std::set<std::string> with_best = files;
  with_best.insert("best");
  int point = 0;
  for (bool crashed = true; crashed;) {
    fs::remove_all(run);
    write(10);
    if (again) write(20);
    crashed = crashes_at(++point, [&] { write(20); });
    EXPECT_EQ(names_in(before), files) << "crash at call " << point;
    if (fs::exists(next)) {
      EXPECT_EQ(names_in(next), with_best) << "crash at call " << point;
    }
    EXPECT_TRUE(crashed || fs::exists(next));
    write(20);
    EXPECT_EQ(names_in(next), with_best);
    EXPECT_EQ(names_in(checkpoints), (std::set<std::string>{"step-0000000010", "step-0000000020"}));
    ASSERT_FALSE(testing::Test::HasFailure());
    ASSERT_LT(point, 1000);
  }
  EXPECT_GT(point, again ? 7 : 4) << "the wrappers count nothing";
  fs::remove_all(run);
}

TEST(CheckpointCrash, WritingAPart) { crash_everywhere_in_a_part(false); }
TEST(CheckpointCrash, ReplacingAPart) { crash_everywhere_in_a_part(true); }

// Step 10 was the best step of the run until step 20 was evaluated. At any moment, the checkpoint that the
// index calls the best exists.
TEST(CheckpointCrash, AmendingACheckpoint) {
  const fs::path run = testing::TempDir() + "modelet_checkpoint_crash_test",
                 checkpoints = run / "checkpoints";
  int point = 0;
  for (bool crashed = true; crashed;) {
    fs::remove_all(run);
    write_sample_checkpoint(checkpoints, 10, 2);
    amend_checkpoint(write_sample_checkpoint(checkpoints, 20, 2), 10, "{}", 1);
    crashed = crashes_at(++point, [&] {
      amend_checkpoint(checkpoint_of_step(checkpoints, 20), 20, R"({"amended":true})", 1);
    });
    EXPECT_EQ(newest_step(run), 20u);
    const CheckpointIndex index = Checkpoint::open(find_checkpoint(run)).index();
    EXPECT_EQ(index.extra, index.best_step == 20 ? R"({"amended":true})" : "{}");
    EXPECT_EQ(find_model(run), checkpoint_of_step(checkpoints, index.best_step)) << "crash at call " << point;
    EXPECT_TRUE(crashed || index.best_step == 20);
    ASSERT_FALSE(testing::Test::HasFailure());
    ASSERT_LT(point, 1000);
  }
  EXPECT_EQ(names_in(checkpoints), std::set<std::string>{"step-0000000020"});
  EXPECT_GT(point, 5) << "the wrappers count nothing";
  fs::remove_all(run);
}

}  // namespace
}  // namespace modelet::shard
