#include "base/system/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <random>
#include <utility>

#include "base/system/clock.h"

namespace modelet {
namespace {

constexpr mode_t kMode = 0644;
constexpr const char* kOpenFiles = "/proc/self/fd";

// A path beside `path` that nobody else takes: processes in other containers or on other machines may have the
// same id and write to the same folder.
std::filesystem::path temporary_name(std::filesystem::path path) {
  std::random_device random;
  return path += ".tmp." + std::to_string(random()) + "." + std::to_string(random());
}

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw WriteError(errno_text(path) + " (while writing)");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

// O_NONBLOCK: opening a pipe to which nobody writes would wait for ever.
Descriptor open_to_read(const std::filesystem::path& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) throw Error(errno_text(path.string()));
  return file;
}

uint64_t size_of_regular(int fd, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw Error(errno_text(path.string()));
  if (!S_ISREG(info.st_mode)) throw Error(path.string() + ": not a regular file");
  return static_cast<uint64_t>(info.st_size);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file = open_to_read(path);
  size_ = size_of_regular(file.get(), path);
  if (size_ == 0) return;
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) throw Error(errno_text(path.string()) + " (mmap)");
  data_ = static_cast<const std::byte*>(memory);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

ReadFile::ReadFile(std::filesystem::path path)
    : path_(std::move(path)), file_(open_to_read(path_)), bytes_(size_of_regular(file_.get(), path_)) {}

void ReadFile::read(uint64_t offset, std::span<std::byte> to) const {
  const auto read = read_at(file_.get(), offset, to, path_);
  if (!read) throw Error(path_.string() + ": the disk cannot read it");
  if (*read < to.size()) throw Error(path_.string() + ": was shortened while it was read");
}

std::optional<size_t> read_at(int fd, uint64_t offset, std::span<std::byte> to,
                              const std::filesystem::path& path) {
  size_t done = 0;
  while (done < to.size()) {
    const ssize_t n = ::pread(fd, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EIO) return std::nullopt;
    if (n < 0) throw Error(errno_text(path.string()) + " (while reading)");
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

namespace {

// Like rename(2), but fails with EEXIST if there is a file `to`.
bool rename_to_new(const char* from, const char* to) {
  if (::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) return false;
  // Some file systems, such as NFS, do not know the flag; others have no hard links.
  if (::link(from, to) == 0) return ::unlink(from) == 0;
  if (errno != EPERM && errno != EOPNOTSUPP) return false;
  if (::access(to, F_OK) != 0) return ::rename(from, to) == 0;
  errno = EEXIST;
  return false;
}

}  // namespace

// If the file system can (O_TMPFILE), the file has no name until it is complete: then even a process that is
// killed leaves nothing behind. `temporary_` is empty as long as there is no name. The file gets its name
// through /proc, because linkat() on the descriptor itself needs a capability. Where /proc is not mounted,
// the file has a name from the start.
AtomicFile::AtomicFile(std::filesystem::path path, Existing existing)
    : path_(std::move(path)), existing_(existing) {
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  if (::access(kOpenFiles, X_OK) == 0) {
    fd_ = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, kMode);
    if (fd_ >= 0) return;
  }
  temporary_ = temporary_name(path_);
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  if (fd_ < 0) throw WriteError(errno_text(path_.string()));
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

// O_NONBLOCK: as in open_to_read().
AppendedFile::AppendedFile(std::filesystem::path path)
    : path_(std::move(path)),
      file_(
          ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, kMode)) {
  struct stat info {};
  if (file_.get() < 0 || ::fstat(file_.get(), &info) != 0) throw Error(errno_text(path_.string()));
  if (!S_ISREG(info.st_mode)) throw Error(path_.string() + ": not a regular file");
}

void AppendedFile::write(std::string_view text) {
  const auto before = static_cast<off_t>(size_of_regular(file_.get(), path_));
  try {
    write_all(file_.get(), std::as_bytes(std::span(text)), path_.string());
  } catch (const Error&) {
    [[maybe_unused]] const int cut = ::ftruncate(file_.get(), before);  // the error that is known is told
    throw;
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) { write_all(fd_, bytes, path_.string()); }

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw WriteError(errno_text(path_.string()) + " (while writing)");
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

void AtomicFile::commit(Sync sync) {
  MODELET_CHECK(fd_ >= 0, "commit() twice");
  if (sync == Sync::kYes && ::fsync(fd_) != 0) throw WriteError(errno_text(path_.string()) + " (fsync)");
  if (temporary_.empty()) {
    temporary_ = temporary_name(path_);
    const std::string open_file = std::string(kOpenFiles) + "/" + std::to_string(fd_);
    if (::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) != 0)
      throw WriteError(errno_text(path_.string()) + " (naming the written file)");
  }
  ::close(std::exchange(fd_, -1));
  if (existing_ == Existing::kReplace ? ::rename(temporary_.c_str(), path_.c_str()) == 0
                                      : rename_to_new(temporary_.c_str(), path_.c_str()))
    return;
  const int failure = errno;
  ::unlink(temporary_.c_str());
  if (failure == EEXIST && existing_ == Existing::kKeep)
    throw UsageError(path_.string() +
                     ": another program has made it meanwhile; give another name, or --force to replace it");
  errno = failure;
  throw WriteError(errno_text(path_.string()));
}

void link_or_copy(const std::filesystem::path& from, const std::filesystem::path& to) {
  namespace fs = std::filesystem;
  std::error_code failure;
  fs::remove(to, failure);
  fs::create_hard_link(from, to, failure);
  if (!failure) return;
  fs::copy_file(from, to, failure);
  if (failure) throw Error(from.string() + ": " + failure.message() + " (linking it to " + to.string() + ")");
}

LockResult try_lock(int fd, LockKind kind, const std::filesystem::path& path, std::optional<uint32_t> byte) {
  constexpr short kTypes[] = {F_UNLCK, F_RDLCK, F_WRLCK};
  struct flock range {};
  range.l_type = kTypes[static_cast<size_t>(kind)];
  range.l_whence = SEEK_SET;
  range.l_start = byte.value_or(0);
  range.l_len = byte ? 1 : 0;  // 0: to the end, wherever that is
  if (::fcntl(fd, F_OFD_SETLK, &range) == 0) return LockResult::kTaken;
  if (errno == EAGAIN || errno == EACCES) return LockResult::kHeldByOthers;
  if (errno == ENOLCK || errno == EOPNOTSUPP || errno == EINVAL) return LockResult::kUnknown;
  throw Error(errno_text(path.string()) + " (locking it)");
}

std::optional<FileLock> FileLock::take(const std::filesystem::path& path) {
  FileLock file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode));
  if (file.fd_ < 0) throw WriteError(errno_text(path.string()));
  if (try_lock(file.fd_, LockKind::kExclusive, path) == LockResult::kHeldByOthers) return std::nullopt;
  return file;
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

namespace {

constexpr std::string_view kFolderPrefix = "modelet-", kFolderPattern = "-XXXXXX";
constexpr const char* kOwnerFile = ".owner";    // of a temporary folder: its process has it locked
constexpr std::string_view kGoing = ".removed";  // behind the name of a folder that is being removed

// Whether mkdtemp() may have made the folder, for this user. lstat() does not follow a link.
bool is_temporary_folder(const std::filesystem::path& folder) {
  std::string name = folder.filename().string();
  if (name.ends_with(kGoing)) name.resize(name.size() - kGoing.size());
  constexpr mode_t kOthers = 0077;  // permission bits of group and others
  struct stat info {};
  return name.starts_with(kFolderPrefix) && name.size() > kFolderPrefix.size() + kFolderPattern.size() &&
         name[name.size() - kFolderPattern.size()] == '-' && ::lstat(folder.c_str(), &info) == 0 &&
         S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & kOthers) == 0;
}

// Removes the folder unless a process holds its lock or, if it is not `own`, may hold it. It gets another name first: if this
// process is killed meanwhile, a folder without a lock under its first name could be one that is being made.
void remove_unlocked(const std::filesystem::path& folder, bool own) {
  const std::filesystem::path owner = folder / kOwnerFile;
  const Descriptor lock(::open(owner.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const LockResult result =
      lock.get() < 0 ? LockResult::kUnknown : try_lock(lock.get(), LockKind::kExclusive, owner);
  if (result != LockResult::kTaken && !(own && result == LockResult::kUnknown)) return;
  std::filesystem::path going = folder;
  going += kGoing;
  std::error_code failure;  // what stays behind is removed another time
  std::filesystem::rename(folder, going, failure);
  std::filesystem::remove_all(failure ? folder : going, failure);
}

}  // namespace

TemporaryFolder::TemporaryFolder(std::string_view purpose, const std::filesystem::path& parent)
    : process_(::getpid()) {
  const char* given = std::getenv("TMPDIR");
  const std::array<std::filesystem::path, 4> usual = {given == nullptr ? "" : given, "/tmp", "/var/tmp",
                                                      "/dev/shm"};
  const auto make = [&](const std::filesystem::path& path) { return make_in(path, purpose); };
  if (parent.empty() ? std::ranges::any_of(usual, make) : make(parent)) return;
  throw WriteError(parent.empty()
                       ? "no folder for temporary files can be written to, neither $TMPDIR nor /tmp nor "
                         "/var/tmp nor /dev/shm: set TMPDIR to one that can"
                       : errno_text(parent.string()) + " (making a temporary folder there)");
}

// Somebody who removes what was left behind may find the folder before it is locked. Then it is made again.
bool TemporaryFolder::make_in(const std::filesystem::path& parent, std::string_view purpose) {
  if (parent.empty()) return false;
  remove_left_behind(parent);
  for (int attempt = 0; attempt < 8; ++attempt) {
    std::string pattern = (std::filesystem::absolute(parent) / kFolderPrefix).string();
    (pattern += purpose) += kFolderPattern;
    if (::mkdtemp(pattern.data()) == nullptr) return false;
    path_ = pattern;
    const std::filesystem::path owner = path_ / kOwnerFile;
    lock_ = ::open(owner.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
    if (lock_ < 0) {
      const int failure = errno;
      ::rmdir(path_.c_str());
      errno = failure;
      return false;
    }
    if (try_lock(lock_, LockKind::kExclusive, owner) != LockResult::kHeldByOthers &&
        ::access(owner.c_str(), F_OK) == 0)
      return true;
    ::close(std::exchange(lock_, -1));
  }
  return false;
}

// A forked child keeps the lock, which it shares with this process, until it ends.
void TemporaryFolder::remove() {
  if (lock_ < 0 || process_ != ::getpid()) return;
  ::close(std::exchange(lock_, -1));
  try {
    remove_unlocked(path_, true);
  } catch (const Error&) {  // it is removed another time
  }
}

void TemporaryFolder::remove_left_behind(const std::filesystem::path& parent) {
  std::error_code failure;
  for (std::filesystem::directory_iterator entry(parent, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    try {
      if (!is_temporary_folder(entry->path())) continue;
      if (std::error_code ignored; entry->path().extension() == kGoing)
        std::filesystem::remove_all(entry->path(), ignored);
      else
        remove_unlocked(entry->path(), false);
    } catch (const Error&) {  // it stays
    }
  }
}

std::string file_identity(const std::filesystem::path& path) {
  constexpr double kTick = 0.01;  // seconds: the clock of file systems moves on at least as often
  constexpr int kMostTicks = 3;
  const auto seconds = [](const timespec& a, const timespec& since) {
    return static_cast<double>(a.tv_sec - since.tv_sec) +
           static_cast<double>(a.tv_nsec - since.tv_nsec) * 1e-9;
  };
  struct stat info {};
  for (int tick = 0;; ++tick) {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (::stat(path.c_str(), &info) != 0) throw Error(errno_text(path.string()));
    const double age = seconds(now, info.st_ctim);
    // A time far in the future is that of another machine's clock.
    if (age > 0 || age < -kTick || tick == kMostTicks) break;
    SteadyClock().sleep(kTick);
  }
  std::string text = std::to_string(info.st_ino) + ' ' + std::to_string(info.st_size);
  for (const timespec& time : {info.st_mtim, info.st_ctim})
    text += ' ' + std::to_string(time.tv_sec) + ' ' + std::to_string(time.tv_nsec);
  return text;
}

std::string read_text_file(const std::filesystem::path& path, size_t limit) {
  const ReadFile file(path);
  if (file.bytes() > limit)
    throw Error(path.string() + ": " + std::to_string(file.bytes()) + " bytes, more than the limit of " +
                std::to_string(limit));
  std::string text(file.bytes(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace modelet
