// Which user owns the run in a folder: no other user may continue it or write into it.
#include "node_agent/folders/run_owner.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <atomic>
#include <barrier>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/error.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

class RunOwnerTest : public testing::Test {
 protected:
  RunOwnerTest() : folder_(testing::TempDir() + "modelet_run_owner_test") { fs::remove_all(folder_); }
  ~RunOwnerTest() override { fs::remove_all(folder_); }

  const fs::path folder_;
  const RunOwner alice_{.submitter = "alice"}, bob_{.submitter = "bob"}, root_{"root", true}, nobody_;
};

TEST_F(RunOwnerTest, ARunStaysWithWhoSubmittedIt) {
  const fs::path run = folder_ / "run";
  claim_run_folder(run, alice_);
  EXPECT_NO_THROW(claim_run_folder(run, alice_)) << "continued";
  EXPECT_THROW(claim_run_folder(run, bob_), UsageError);
  for (const fs::path& inside :
       {run, run / "checkpoints" / "step-1", run / "new", folder_ / "x" / ".." / "run"}) {
    EXPECT_THROW(require_own_run(inside, bob_), UsageError) << inside;
    EXPECT_NO_THROW(require_own_run(inside, alice_)) << inside;
    EXPECT_NO_THROW(require_own_run(inside, root_)) << inside;
    EXPECT_NO_THROW(require_own_run(inside, nobody_)) << "a pool without keys knows no users";
  }
  fs::create_directory_symlink(run, folder_ / "link");
  EXPECT_THROW(require_own_run(folder_ / "link", bob_), UsageError);
  EXPECT_NO_THROW(claim_run_folder(folder_ / "other", bob_));
  try {
    claim_run_folder(run / "below", bob_);
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("holds a run of the key 'alice', and this is 'bob'"));
  }
  EXPECT_FALSE(fs::exists(run / "below"));
}

TEST_F(RunOwnerTest, AnAdministratorLeavesTheRunItsOwner) {
  const fs::path run = folder_ / "run";
  claim_run_folder(run, alice_);
  claim_run_folder(run, root_);
  EXPECT_NO_THROW(claim_run_folder(run, alice_));
  EXPECT_THROW(claim_run_folder(run, bob_), UsageError);
}

// `modelet train --nodes N` is the administrator of its own pool. Its runs may continue in any other pool.
TEST_F(RunOwnerTest, AnAdministratorsRunIsEverybodys) {
  fs::create_directories(folder_ / "run");
  claim_run_folder(folder_ / "run", root_);
  EXPECT_NO_THROW(claim_run_folder(folder_ / "run", bob_));
}

TEST_F(RunOwnerTest, AFolderOfAPoolWithoutKeysIsEverybodys) {
  claim_run_folder(folder_ / "run", nobody_);
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  fs::create_directories(folder_ / "run");
  EXPECT_NO_THROW(claim_run_folder(folder_ / "run", bob_));
  EXPECT_THROW(claim_run_folder(folder_ / "run", alice_), UsageError);
}

// `--out` names a folder in which many users have their runs.
TEST_F(RunOwnerTest, NobodyClaimsAFolderWithOtherThings) {
  fs::create_directories(folder_ / "of-bob");
  try {
    claim_run_folder(folder_, alice_);
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("choose a folder of the run's own"));
  }
  EXPECT_NO_THROW(claim_run_folder(folder_ / "of-bob", bob_));
  EXPECT_NO_THROW(claim_run_folder(folder_, root_)) << "an administrator's is everybody's";
  EXPECT_NO_THROW(claim_run_folder(folder_, nobody_));
}

TEST_F(RunOwnerTest, ARunOfAPoolWithoutKeysAndWhatIsLeftOfAnAttemptCanBeClaimed) {
  fs::create_directories(folder_ / "run" / "checkpoints");
  std::ofstream(folder_ / "run" / "notes.txt") << "x";
  EXPECT_NO_THROW(claim_run_folder(folder_ / "run", alice_));
  fs::create_directories(folder_ / "attempt");
  std::ofstream(folder_ / "attempt" / ".lock") << "";
  EXPECT_NO_THROW(claim_run_folder(folder_ / "attempt", alice_));
  EXPECT_THROW(claim_run_folder(folder_ / "attempt", bob_), UsageError);
}

TEST_F(RunOwnerTest, WhatDoesNotCountIsReplaced) {
  fs::create_directories(folder_ / "run");
  fs::create_symlink("nowhere", folder_ / "run" / "submitter");
  claim_run_folder(folder_ / "run", alice_);
  EXPECT_THROW(claim_run_folder(folder_ / "run", bob_), UsageError);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "run"), {}), 1) << "no temporary file stays";
}

TEST_F(RunOwnerTest, AFolderWhoseOwnerCannotBeReadIsNotNobodys) {
  claim_run_folder(folder_ / "run", alice_);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::string refusal;
  try {
    require_own_run(folder_ / "run", bob_);
  } catch (const UsageError&) {
    refusal = "read";
  } catch (const Error& error) {
    refusal = error.what();
  }
  ::setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_THAT(refusal, testing::HasSubstr("submitter: Too many open files"));
}

TEST_F(RunOwnerTest, OfTwoWhoClaimAtOnceOneGetsTheFolder) {
  for (int round = 0; round < 100; ++round) {
    const fs::path run = folder_ / std::to_string(round);
    std::barrier both(2);
    std::atomic<int> got{0};
    const auto claim = [&](const RunOwner& owner) {
      both.arrive_and_wait();
      try {
        claim_run_folder(run, owner);
        ++got;
      } catch (const UsageError&) {
      }
    };
    std::thread other(claim, alice_);
    claim(bob_);
    other.join();
    ASSERT_EQ(got, 1);
  }
}

}  // namespace
}  // namespace modelet::agent
