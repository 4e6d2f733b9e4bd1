// FailingDisk: a file whose sectors the disk cannot read: pread(2) fails with EIO, under each of the file's names,
// until something is written to it or the FailingDisk is destroyed. One at a time. Programs that use it contain
// failing_disk.cc, whose pread() and pwrite() take the place of libc's.
#pragma once

#include <filesystem>

namespace modelet::test {

class FailingDisk {
 public:
  explicit FailingDisk(const std::filesystem::path& file);
  ~FailingDisk();
  FailingDisk(const FailingDisk&) = delete;
  FailingDisk& operator=(const FailingDisk&) = delete;

  bool was_written() const;
};

}  // namespace modelet::test
