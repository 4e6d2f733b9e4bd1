// Which files a submitted run may make an agent open.
#include "node_agent/agent/job/data_roots.h"

#include <gmock/gmock.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "tests/error_of.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DataRootsTest : public ::testing::Test {
 protected:
  DataRootsTest() {
    fs::remove_all(top);
    for (const char* folder : {"data/in", "elsewhere"}) fs::create_directories(top / folder);
    for (const char* file : {"data/in/train.txt", "data/test.txt", "elsewhere/secret"})
      std::ofstream(top / file) << "root:x:0:0\n";
  }
  ~DataRootsTest() override { fs::remove_all(top); }

  TrainJob job() const {
    TrainJob job;
    job.experiment.data.train = top / "data/in/train.txt";
    job.experiment.data.test = top / "data/test.txt";
    return job;
  }
  std::string refusal(const TrainJob& job) const {
    try {
      DataRoots(roots).check(job);
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

  const fs::path top = fs::path(::testing::TempDir()) / "modelet_roots_test";
  std::vector<fs::path> roots{top / "data"};
};

TEST_F(DataRootsTest, WhatIsBeneathIsAllowed) {
  EXPECT_EQ(refusal(job()), "");
  EXPECT_EQ(refusal_of_data(top / "data/in/../test.txt"), "");
  fs::create_symlink("../test.txt", top / "data/in/link");
  EXPECT_EQ(refusal_of_data(top / "data/in/link"), "");
}

TEST_F(DataRootsTest, NothingElseIsRead) {
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
TEST_F(DataRootsTest, OnlyRegularFilesAreData) {
  ASSERT_EQ(::mkfifo((top / "data/pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal_of_data(top / "data/pipe"), HasSubstr("a regular file"));
  EXPECT_THAT(refusal_of_data(top / "data/in"), HasSubstr("a regular file"));
  roots = {"/"};
  EXPECT_THAT(refusal_of_data("/dev/ptmx"), HasSubstr("a regular file"));
  EXPECT_THAT(refusal_of_data("/dev/zero"), HasSubstr("a regular file"));
}

TEST_F(DataRootsTest, WhatWasFetchedIsTheAgentsOwn) {
  TrainJob fetched = job();
  fetched.experiment.data.train = fetched.experiment.data.test = "/etc/shadow";
  EXPECT_NE(refusal(fetched), "");
  fetched.train_file = fetched.test_file = top / "cache/x.data";
  EXPECT_EQ(refusal(fetched), "");
}

TEST_F(DataRootsTest, ARootIsAFolder) {
  EXPECT_THROW(DataRoots({top / "data", top / "nowhere"}), UsageError);
}

// From now on this process may not call openat2, as under RestrictSUIDSGID=yes. Returns false if the kernel has no
// such filters.
bool forbid_openat2() {
  std::array<sock_filter, 4> program{{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
                                      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                                      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST_F(DataRootsTest, ASystemCallThatIsForbiddenIsNamedBeforeAnyRun) {
  const auto start = [this](const std::vector<fs::path>& folders) {
    if (!forbid_openat2()) std::_Exit(77);
    try {
      const DataRoots made(folders);
    } catch (const UsageError& error) {
      std::fputs(error.what(), stderr);
      std::_Exit(2);
    }
    std::_Exit(0);
  };
  const auto ends_with = [](int code) {
    return [code](int status) {
      return WIFEXITED(status) && (WEXITSTATUS(status) == code || WEXITSTATUS(status) == 77);
    };
  };
  EXPECT_EXIT(start(roots), ends_with(2), "openat2.*RestrictSUIDSGID|^$");
  EXPECT_EXIT(start({}), ends_with(0), "") << "without data roots it is not needed";
}

}  // namespace
}  // namespace modelet::agent
