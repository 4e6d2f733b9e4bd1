// Which files and folders a submitted run may make an agent open.
#include "node_agent/folders/roots.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "tests/error_of.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RootsTest : public ::testing::Test {
 protected:
  RootsTest() {
    fs::remove_all(top);
    for (const char* folder : {"data/in", "runs/cache", "elsewhere"}) fs::create_directories(top / folder);
    for (const char* file : {"data/in/train.txt", "data/test.txt", "elsewhere/secret"})
      std::ofstream(top / file) << "root:x:0:0\n";
  }
  ~RootsTest() override { fs::remove_all(top); }

  TrainJob job() const {
    TrainJob job;
    job.experiment.data.train = top / "data/in/train.txt";
    job.experiment.data.test = top / "data/test.txt";
    job.out = top / "runs/mine";
    return job;
  }
  std::string refusal(const TrainJob& job) const {
    try {
      check(roots, job);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }
  std::string refusal_of_data(const fs::path& path) const {
    TrainJob asked = job();
    asked.experiment.data.train = path;
    return refusal(asked);
  }
  std::string refusal_of_out(const fs::path& path) const {
    TrainJob asked = job();
    asked.out = path;
    return refusal(asked);
  }

  const fs::path top = fs::path(::testing::TempDir()) / "modelet_roots_test";
  Roots roots{
      .data = {top / "data"}, .out = {top / "runs"}, .kept_out = {top / "runs/cache", top / "runs/holder"}};
};

TEST_F(RootsTest, WhatIsBeneathIsAllowed) {
  EXPECT_EQ(refusal(job()), "");
  EXPECT_EQ(refusal_of_data(top / "data/in/../test.txt"), "");
  fs::create_symlink("../test.txt", top / "data/in/link");
  EXPECT_EQ(refusal_of_data(top / "data/in/link"), "");
  EXPECT_EQ(refusal_of_out(top / "runs/new/and/deeper"), "");
}

// A run owns its folder and everything below it. If it got a root, the root would be lost for all other runs.
TEST_F(RootsTest, ARunNeedsAFolderOfItsOwn) {
  fs::create_directories(top / "runs/inner");
  fs::create_symlink(".", top / "runs/here");
  roots.out.push_back(top / "runs/inner");
  for (const char* out : {"runs", "runs/", "runs/mine/..", "runs/here", "runs/inner"})
    EXPECT_THAT(refusal_of_out(top / out), HasSubstr("a folder of its own beneath")) << out;
  EXPECT_EQ(refusal_of_out(top / "runs/inner/mine"), "");
}

// The folders are checked before data is fetched, when there may be no root for data.
TEST_F(RootsTest, FoldersCanBeCheckedAlone) {
  TrainJob asked = job();
  asked.experiment.data.train = "/nowhere";
  EXPECT_NO_THROW(check_folders(roots, asked));
  asked.out = top / "elsewhere/new";
  EXPECT_THROW(check_folders(roots, asked), UsageError);
}

TEST_F(RootsTest, NothingElseIsRead) {
  fs::create_symlink(top / "elsewhere", top / "data/out");
  fs::create_symlink("../elsewhere/secret", top / "data/secret");
  const fs::path wrong[] = {"/etc/shadow",
                            top / "elsewhere/secret",
                            top / "data/../elsewhere/secret",
                            top / "data/out/secret",
                            top / "data/secret",
                            "data/test.txt",
                            "",
                            top / "data-2/x"};
  for (const fs::path& path : wrong)
    EXPECT_THAT(refusal_of_data(path), AllOf(HasSubstr("'" + path.string() + "'"), HasSubstr("--data-root"),
                                             Not(HasSubstr("root:x"))));
  // The message does not reveal whether a file exists elsewhere.
  const auto told = [&](const std::string& name) {
    std::string text = refusal_of_data(top / "elsewhere" / name);
    return text.erase(text.find(name), name.size());
  };
  EXPECT_EQ(told("secret"), told("nothing"));
}

// Opening a pipe waits for a writer, and reading a terminal waits for input.
TEST_F(RootsTest, OnlyRegularFilesAreData) {
  ASSERT_EQ(::mkfifo((top / "data/pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal_of_data(top / "data/pipe"), HasSubstr("a regular file"));
  EXPECT_THAT(refusal_of_data(top / "data/in"), HasSubstr("a regular file"));
  roots.data = {"/"};
  EXPECT_THAT(refusal_of_data("/dev/ptmx"), HasSubstr("a regular file"));
  EXPECT_THAT(refusal_of_data("/dev/zero"), HasSubstr("a regular file"));
}

TEST_F(RootsTest, NothingElseIsWritten) {
  fs::create_directory_symlink(top / "elsewhere", top / "runs/out");
  for (const fs::path& path :
       {fs::path("/etc/cron.d"), top / "elsewhere/new", top / "runs/../elsewhere/new", top / "runs/out/new",
        top / "runs/cache", top / "runs/cache/x", top / "data", fs::path("runs/x")})
    EXPECT_THAT(refusal_of_out(path), HasSubstr("--out-root")) << path;
  TrainJob resumed = job();
  resumed.resume = "/root/checkpoint";
  EXPECT_THAT(refusal(resumed), HasSubstr("the checkpoint"));
}

// A run that got such a folder would own what the agent puts there for other users.
TEST_F(RootsTest, TheAgentsOwnFoldersAreForTheAgent) {
  roots.kept_out = {top / "runs/own", top / "runs/link/own"};
  fs::create_directories(top / "runs/deep");
  fs::create_symlink("deep", top / "runs/link");
  for (const char* out : {"own", "own/x", "mine/../own/x", "link/own", "deep/own", "deep/own/x"}) {
    EXPECT_THAT(refusal_of_out(top / "runs" / out), HasSubstr("--out-root")) << out;
    TrainJob chosen_by_agent = job();
    chosen_by_agent.out = top / "runs" / out;
    chosen_by_agent.private_folder = true;
    EXPECT_EQ(refusal(chosen_by_agent), "") << out;
  }
  EXPECT_EQ(refusal_of_out(top / "runs/owner"), "");
}

TEST_F(RootsTest, WhatWasFetchedIsTheAgentsOwn) {
  TrainJob fetched = job();
  fetched.experiment.data.train = fetched.experiment.data.test = "/etc/shadow";
  EXPECT_NE(refusal(fetched), "");
  fetched.train_file = fetched.test_file = top / "runs/cache/x.data";
  EXPECT_EQ(refusal(fetched), "");
}

TEST_F(RootsTest, ARootIsAFolder) {
  EXPECT_NO_THROW(check(roots));
  roots.data.push_back(top / "nowhere");
  EXPECT_THROW(check(roots), UsageError);
}

}  // namespace
}  // namespace modelet::agent
