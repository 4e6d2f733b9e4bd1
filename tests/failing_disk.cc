#include "tests/failing_disk.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/error.h"

namespace modelet::test {
namespace {

std::atomic<ino_t> unreadable{0};  // 0: every file can be read

bool is_unreadable(int fd) {
  struct stat info {};
  const ino_t file = unreadable;
  return file != 0 && ::fstat(fd, &info) == 0 && info.st_ino == file;
}

}  // namespace

FailingDisk::FailingDisk(const std::filesystem::path& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) throw Error(errno_text(file.string()));
  MODELET_CHECK(unreadable.exchange(info.st_ino) == 0, "one FailingDisk at a time");
}

FailingDisk::~FailingDisk() { unreadable = 0; }

bool FailingDisk::was_written() const { return unreadable == 0; }

}  // namespace modelet::test

extern "C" ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  if (modelet::test::is_unreadable(fd)) {
    errno = EIO;
    return -1;
  }
  return ::syscall(SYS_pread64, fd, to, bytes, offset);
}

extern "C" ssize_t pwrite(int fd, const void* from, size_t bytes, off_t offset) {
  if (modelet::test::is_unreadable(fd)) modelet::test::unreadable = 0;
  return ::syscall(SYS_pwrite64, fd, from, bytes, offset);
}
