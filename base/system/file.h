// Files: reading, atomic writing, locks, what tells two files apart, temporary folders. Errors are
// modelet::Error with the path in their text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/system/descriptor.h"

namespace modelet {

// A whole file, mapped read-only. Owns the mapping; movable. The bytes may be read from any thread. If the disk
// cannot read them, or somebody shortens the file, a signal (SIGBUS) ends the process.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A regular file that is read by calls: what the disk cannot read is an Error. Any thread may read.
class ReadFile {
 public:
  explicit ReadFile(std::filesystem::path path);
  uint64_t bytes() const { return bytes_; }
  // Fills `to` with the bytes from `offset` on.
  void read(uint64_t offset, std::span<std::byte> to) const;

 private:
  std::filesystem::path path_;
  Descriptor file_;
  uint64_t bytes_;
};

// Reads from an open file into `to` until it is full or the file ends. Returns the number of bytes, or nothing
// if the disk cannot read them (EIO). Other failures are Errors that name `path`.
std::optional<size_t> read_at(int fd, uint64_t offset, std::span<std::byte> to,
                              const std::filesystem::path& path);

// A file cannot be written: its folder is missing or may not be written to, or the disk is full.
class WriteError : public Error {
 public:
  using Error::Error;
};

// Writes `path` so that a reader, or a crash at any moment, sees either the old file or the whole new one: a
// temporary file in the same folder, fsync, rename. Sync::kNo leaves out the fsync: a process may still crash
// at any moment, but after a power cut the file may have other content. What fails is a WriteError.
enum class Sync { kNo, kYes };
// What becomes of a file that has the name already when the new one is whole. If it is kept, commit() throws
// UsageError: of several programs that write one name at a time, one succeeds.
enum class Existing { kReplace, kKeep };
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path, Existing existing = Existing::kReplace);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();  // removes the temporary file unless commit() was called

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Overwrites bytes already written at `offset` (for a header whose checksum is known last).
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  void commit(Sync sync = Sync::kYes);

 private:
  std::filesystem::path path_, temporary_;
  Existing existing_;
  int fd_ = -1;
};

// A file to which one process appends texts, each whole or not at all. It is made if it is missing, and opened only
// if it is a regular file, not a symbolic link, which others could have put there.
class AppendedFile {
 public:
  explicit AppendedFile(std::filesystem::path path);
  void write(std::string_view text);

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

// Gives a file a second name: by a hard link or, where the file system does not allow that, by a copy.
// Replaces what is at `to`.
void link_or_copy(const std::filesystem::path& from, const std::filesystem::path& to);

// Sets an open file description lock (fcntl(2)) on a whole file, or on one byte of it, which need not exist.
// An existing lock changes its kind in one step, so that nobody can take the lock in between (flock(2) would
// release the old lock first). Never waits. kExclusive needs a file that is open for writing, kShared one
// that is open for reading; kNone releases the lock. The result is kUnknown if the file system has no locks.
// Other failures are Errors that name `path`.
enum class LockKind { kNone, kShared, kExclusive };
enum class LockResult { kTaken, kHeldByOthers, kUnknown };
LockResult try_lock(int fd, LockKind kind, const std::filesystem::path& path,
                    std::optional<uint32_t> byte = {});

// An exclusive lock (try_lock) on a file. The file is created if it is missing, and is never removed. Nobody
// else can take the lock, in this process or another, until the FileLock is destroyed or the process ends.
// Works on NFS. On a file system without locks, it keeps nobody out.
class FileLock {
 public:
  // Nothing if somebody else has the lock. WriteError if the file cannot be opened for writing.
  static std::optional<FileLock> take(const std::filesystem::path& path);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

// A folder for this user alone, which belongs to the process that made it and is removed with this object. A
// forked child has a copy of the object, which removes nothing. The process holds a lock on the folder. What a
// killed process has left is removed when the next folder is made beside it, or by remove_left_behind().
class TemporaryFolder {
 public:
  // Makes the folder "modelet-PURPOSE-XXXXXX" in `parent` or, if that is empty, in the first folder that can be
  // written to: $TMPDIR, /tmp, /var/tmp, /dev/shm. WriteError if it cannot be made.
  explicit TemporaryFolder(std::string_view purpose, const std::filesystem::path& parent = {});
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { remove(); }

  const std::filesystem::path& path() const { return path_; }
  // Removes the folder before the object ends. Does nothing in a forked child, and leaves the folder there as
  // long as such a child lives, because that may still read it.
  void remove();

  // Removes the folders in `parent` of processes of this user that have ended.
  static void remove_left_behind(const std::filesystem::path& parent);

 private:
  bool make_in(const std::filesystem::path& parent, std::string_view purpose);

  std::filesystem::path path_;
  int lock_ = -1;
  int process_;
};

// A text that tells a file from all others, and from itself before a change: its inode, its size, and the times
// to the nanosecond at which its content and its inode were changed. A program can set the first time back, but
// not the second. Each change after the call gives another identity: if the file was changed just now, the call
// waits until the clock of file systems has moved on, for some milliseconds. Error if there is no such file.
std::string file_identity(const std::filesystem::path& path);

// The whole file as text. A file of more than `limit` bytes is an Error.
std::string read_text_file(const std::filesystem::path& path, size_t limit = size_t{64} << 20);

}  // namespace modelet
