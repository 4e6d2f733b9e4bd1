// Mapped and atomic files.
#include "base/system/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <spdlog/fmt/fmt.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>

#include "base/error.h"
#include "tests/failing_disk.h"
#include "tests/processes.h"

namespace modelet {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  FileTest() : folder_(testing::TempDir() + "modelet_file_test") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~FileTest() override { fs::remove_all(folder_); }

  size_t entries() const { return std::distance(fs::directory_iterator(folder_), fs::directory_iterator()); }

  fs::path folder_;
};

// A limit of the size of files stands for a full disk: it, too, takes a part of the text.
TEST_F(FileTest, AnAppendedTextIsWholeOrNotThere) {
  const fs::path path = folder_ / "log";
  const auto fill = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    AppendedFile file(path);
    file.write("whole\n");
    const rlimit few{8, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &few);
    try {
      file.write("too much\n");
    } catch (const Error&) {
      std::_Exit(7);
    }
    std::_Exit(8);
  };
  EXPECT_EXIT(fill(), testing::ExitedWithCode(7), "");
  EXPECT_EQ(read_text_file(path), "whole\n");
}

TEST(ErrnoText, SaysWhatToDo) {
  for (const int code : {ENOSPC, EDQUOT, EROFS, EMFILE}) {
    errno = code;
    const std::string text = errno_text("run/log.jsonl");
    EXPECT_THAT(text, testing::StartsWith(std::string("run/log.jsonl: ") + std::strerror(code) + ": "));
  }
}

TEST_F(FileTest, OfSeveralThatKeepWhatIsThereOneGetsTheName) {
  const fs::path path = folder_ / "data";
  AtomicFile first(path, Existing::kKeep), second(path, Existing::kKeep), forced(path);
  first.write("first");
  second.write("second");
  forced.write("forced");
  second.commit();
  try {
    first.commit();
    ADD_FAILURE() << "has replaced the other file";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr(path.string()), testing::HasSubstr("--force")));
  }
  EXPECT_EQ(read_text_file(path), "second");
  EXPECT_EQ(entries(), 1u);
  forced.commit();
  EXPECT_EQ(read_text_file(path), "forced");
}

TEST_F(FileTest, AtomicFileAppearsOnlyAtCommit) {
  const fs::path path = folder_ / "x";
  std::ofstream(path) << "old";
  {
    AtomicFile file(path);
    file.write("....new");
    const std::string head = "HEAD";
    file.write_at(0, std::as_bytes(std::span(head)));
    EXPECT_EQ(read_text_file(path), "old");
    file.commit();
  }
  EXPECT_EQ(read_text_file(path), "HEADnew");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FileTest, AbandonedAtomicFileLeavesNothing) {
  {
    AtomicFile file(folder_ / "x");
    file.write("half");
  }
  EXPECT_EQ(entries(), 0u);
}

// A process in another container, or on another machine, that writes to the same folder may have the same id.
TEST_F(FileTest, AtomicFileLeavesTheTemporaryFilesOfOthers) {
  constexpr int kOthers = 1000;
  for (int serial = 0; serial < kOthers; ++serial)
    std::ofstream(folder_ / fmt::format("x.tmp.{}.{}", ::getpid(), serial)) << "half";
  AtomicFile file(folder_ / "x");
  file.write("whole");
  file.commit();
  EXPECT_EQ(entries(), kOthers + 1u);
}

TEST_F(FileTest, EveryChangeGivesAnotherIdentity) {
  const fs::path path = folder_ / "x";
  const timespec times[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  const auto write = [&](const fs::path& file) {
    std::ofstream(file) << "text";
    ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  };
  write(path);
  std::set<std::string> identities = {file_identity(path)};
  for (int change = 1; change <= 20; ++change) {
    if (change % 2 == 0) {
      write(path);
    } else {  // by another file
      write(folder_ / "y");
      fs::rename(folder_ / "y", path);
    }
    EXPECT_TRUE(identities.insert(file_identity(path)).second) << "change " << change;
    EXPECT_TRUE(identities.contains(file_identity(path))) << "nothing was changed";
  }
  EXPECT_THROW(file_identity(folder_ / "none"), Error);
}

TEST_F(FileTest, ATemporaryFolderGoesWithItsProcess) {
  fs::path path;
  {
    const TemporaryFolder folder("test", folder_);
    path = folder.path();
    EXPECT_TRUE(path.filename().string().starts_with("modelet-test-"));
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
    std::ofstream(path / "file") << "text";
    const TemporaryFolder other("test", folder_);
    EXPECT_TRUE(fs::exists(path / "file")) << "its process lives";
    EXPECT_EQ(entries(), 2u);
  }
  EXPECT_EQ(entries(), 0u);
}

TEST_F(FileTest, AForkedChildLeavesTheTemporaryFolder) {
  auto folder = std::make_unique<TemporaryFolder>("test", folder_);
  int hold[2];
  ASSERT_EQ(::pipe2(hold, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const fs::path path = folder->path();
    folder.reset();
    ::close(hold[1]);
    char end = 0;
    static_cast<void>(::read(hold[0], &end, 1));
    ::_exit(fs::exists(path) ? 0 : 1);
  }
  const fs::path path = folder->path();
  folder.reset();
  EXPECT_TRUE(fs::exists(path)) << "the child may read it";
  ::close(hold[1]);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  TemporaryFolder::remove_left_behind(folder_);
  EXPECT_EQ(entries(), 0u);
}

TEST_F(FileTest, WhatAKilledProcessHasLeftIsRemoved) {
  fs::create_directories(folder_ / "modelet-run-123456");  // of a user
  std::ofstream(folder_ / "modelet-run-123456" / ".lock");
  const pid_t child = ::fork();
  if (child == 0) {
    const TemporaryFolder folder("test", folder_);
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(entries(), 2u);
  { const TemporaryFolder folder("test", folder_); }
  EXPECT_EQ(entries(), 1u);
}

// Kills processes at many moments while they make folders and remove them.
TEST_F(FileTest, AProcessThatIsKilledWhileItRemovesItsFolderLeavesNothingForGood) {
  for (useconds_t moment = 0; moment < 50; ++moment) {
    const pid_t child = ::fork();
    while (child == 0) {
      const TemporaryFolder folder("test", folder_);
      std::ofstream(folder.path() / "file");
    }
    while (entries() == 0) ::usleep(100);
    ::usleep(17 * moment);
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    TemporaryFolder::remove_left_behind(folder_);
    // Only what it had just begun to make may stay: nobody can tell it from a folder that is being made.
    for (const auto& entry : fs::directory_iterator(folder_)) {
      EXPECT_TRUE(fs::is_empty(entry.path()) && entry.path().extension() != ".removed") << entry.path();
      fs::remove(entry.path());
    }
  }
  const fs::path half = folder_ / "modelet-test-123456.removed";
  fs::create_directory(half);
  fs::permissions(half, fs::perms::owner_all);
  std::ofstream(half / "file");
  TemporaryFolder::remove_left_behind(folder_);
  EXPECT_EQ(entries(), 0u);
}

TEST_F(FileTest, ATemporaryFolderIsMadeWhereItCanBe) {
  ::setenv("TMPDIR", "/proc", 1);
  EXPECT_NO_THROW(TemporaryFolder("test"));
  EXPECT_THROW(TemporaryFolder("test", "/proc"), WriteError);
  ::setenv("TMPDIR", folder_.c_str(), 1);
  {
    const TemporaryFolder folder("test");
    EXPECT_EQ(folder.path().parent_path(), folder_);
  }
  ::unsetenv("TMPDIR");
}

TEST_F(FileTest, ALockKeepsOthersOutUntilItEnds) {
  const fs::path path = folder_ / "lock";
  std::optional<FileLock> lock = FileLock::take(path);
  ASSERT_TRUE(lock);
  EXPECT_FALSE(FileLock::take(path));
  FileLock moved = std::move(*lock);
  lock.reset();
  EXPECT_FALSE(FileLock::take(path)) << "a lock that was moved is still one";
  moved = std::move(*FileLock::take(folder_ / "other"));
  EXPECT_TRUE(FileLock::take(path));
  EXPECT_THROW(FileLock::take(folder_ / "no folder" / "lock"), Error);
}

// Each process adds one to a number, and reads it well before it writes it. Two processes at once would lose
// an addition.
TEST_F(FileTest, BytesAreLockedApart) {
  const fs::path path = folder_ / "bytes";
  const int one = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600),
            other = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  const auto lock = [&path](int file, LockKind kind, std::optional<uint32_t> byte) {
    return try_lock(file, kind, path, byte) == LockResult::kTaken;
  };
  EXPECT_TRUE(lock(one, LockKind::kShared, 0) && lock(one, LockKind::kExclusive, 1));
  EXPECT_TRUE(lock(other, LockKind::kShared, 0));
  EXPECT_FALSE(lock(other, LockKind::kExclusive, 0));
  EXPECT_FALSE(lock(other, LockKind::kShared, 1));
  EXPECT_TRUE(lock(one, LockKind::kNone, 1));
  EXPECT_TRUE(lock(other, LockKind::kExclusive, 1));
  EXPECT_FALSE(lock(other, LockKind::kExclusive, {})) << "the whole file";
  ::close(one);
  EXPECT_TRUE(lock(other, LockKind::kExclusive, {}));
  ::close(other);
}

TEST_F(FileTest, OneProcessAtATimeHasALock) {
  constexpr int kProcesses = 4, kRounds = 50;
  const test::Shared<std::atomic<int>> number;
  const auto ends = test::run_processes(kProcesses, [&](int) {
    for (int round = 0; round < kRounds; ++round) {
      std::optional<FileLock> lock;
      while (!(lock = FileLock::take(folder_ / "lock"))) ::sched_yield();
      const int before = *number;
      for (int i = 0; i < 10; ++i) ::sched_yield();
      *number = before + 1;
    }
  });
  EXPECT_THAT(ends, testing::Each(0));
  EXPECT_EQ(*number, kProcesses * kRounds);
}

TEST_F(FileTest, TheLockOfAKilledProcessIsFree) {
  const auto ends = test::run_processes(1, [&](int) {
    const std::optional<FileLock> lock = FileLock::take(folder_ / "lock");
    if (lock) ::raise(SIGKILL);
  });
  ASSERT_TRUE(WIFSIGNALED(ends[0]));
  EXPECT_TRUE(FileLock::take(folder_ / "lock"));
}

TEST_F(FileTest, AKilledProcessLeavesNothing) {
  const int probe = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (probe < 0) GTEST_SKIP() << "this file system has no files without names";
  ::close(probe);
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(folder_ / "x");
    file.write("half");
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(entries(), 0u);
}

// Runs in a mount namespace of its own, where an empty folder lies over /proc.
TEST_F(FileTest, WritesWhereProcIsNotMounted) {
  enum Outcome { kWritten, kFailed, kNoNameSpace };
  const pid_t child = ::fork();
  if (child == 0) {
    const bool hidden = (::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
                        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                        ::mount("tmpfs", "/proc", "tmpfs", 0, nullptr) == 0;
    if (!hidden) ::_exit(kNoNameSpace);
    try {
      AtomicFile file(folder_ / "x");
      file.write("whole");
      file.commit();
      AtomicFile(folder_ / "y").write("half");
      ::_exit(kWritten);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(kFailed);
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoNameSpace) GTEST_SKIP() << "this user may not have mounts of its own";
  ASSERT_EQ(WEXITSTATUS(status), kWritten);
  EXPECT_EQ(read_text_file(folder_ / "x"), "whole");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FileTest, TwoWritersOfOneFileDoNotMix) {
  AtomicFile a(folder_ / "x"), b(folder_ / "x");
  a.write("aaaa");
  b.write("bb");
  a.commit();
  b.commit();
  EXPECT_EQ(read_text_file(folder_ / "x"), "bb");
}

TEST_F(FileTest, ErrorsNameThePath) {
  EXPECT_THAT([&] { MappedFile(folder_ / "missing"); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("missing: No such")));
  EXPECT_THAT([&] { MappedFile{folder_}; },
              testing::ThrowsMessage<Error>(testing::HasSubstr("not a regular file")));
  EXPECT_THAT([&] { AtomicFile(folder_ / "no" / "x"); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("No such")));
}

TEST_F(FileTest, WhatTheDiskCannotReadIsAnError) {
  std::ofstream(folder_ / "t") << "12345";
  const ReadFile file(folder_ / "t");
  std::array<std::byte, 3> bytes{};
  {
    const test::FailingDisk disk(folder_ / "t");
    EXPECT_THAT([&] { file.read(1, bytes); },
                testing::ThrowsMessage<Error>(testing::HasSubstr("t: the disk cannot read it")));
    EXPECT_THROW(read_text_file(folder_ / "t"), Error);
  }
  file.read(1, bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), "234", 3), 0);
  std::filesystem::resize_file(folder_ / "t", 2);
  EXPECT_THAT([&] { file.read(1, bytes); }, testing::ThrowsMessage<Error>(testing::HasSubstr("shortened")));
}

TEST_F(FileTest, TextHasALimit) {
  std::ofstream(folder_ / "t") << "12345";
  EXPECT_EQ(read_text_file(folder_ / "t", 5), "12345");
  EXPECT_THROW(read_text_file(folder_ / "t", 4), Error);
  std::ofstream(folder_ / "empty").flush();
  EXPECT_EQ(read_text_file(folder_ / "empty"), "");
}

TEST_F(FileTest, MappingMoves) {
  std::ofstream(folder_ / "t") << "12345";
  MappedFile first(folder_ / "t");
  MappedFile second(std::move(first));
  MappedFile third;
  third = std::move(second);
  ASSERT_EQ(third.bytes().size(), 5u);
  EXPECT_EQ(std::memcmp(third.bytes().data(), "12345", 5), 0);
}

}  // namespace
}  // namespace modelet
