#include "comm/content_store.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace modelet::comm {
namespace {

namespace fs = std::filesystem;

constexpr const char *kData = ".data", *kManifest = ".manifest";
constexpr mode_t kMode = 0644;
constexpr size_t kLongestManifest = 64 + kMostChunks * sizeof(ContentId);

// Closes a descriptor, which gives its lock back, unless release() was called.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct stat info_of(int fd, const fs::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw Error(errno_text(path.string()));
  return info;
}

// Whether a file is an entry's data: the folder may hold what is somebody else's.
bool is_data_of_store(const fs::path& path) {
  if (path.extension() != kData) return false;
  try {
    parse_content_id(path.stem().string());
    return true;
  } catch (const FormatError&) {
    return false;
  }
}

// flock(), which signals may interrupt. False if somebody else has it (LOCK_NB).
bool lock(int fd, int operation, const fs::path& path) {
  while (::flock(fd, operation) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) throw Error(errno_text(path.string()) + " (locking it)");
  }
  return true;
}

// All blocks now: a full disk is noticed before anything is fetched.
void allocate(int fd, uint64_t bytes, const fs::path& path) {
  int failure = ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  while (failure == 0 && bytes > 0) {
    failure = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
    if (failure == 0) break;
    if (failure == EINTR) failure = 0;
  }
  if (failure == 0) return;
  ::unlink(path.c_str());
  errno = failure;
  throw Error(errno_text(path.string()) + ": data of " + std::to_string(bytes) + " bytes does not fit there");
}

}  // namespace

StoredContent::StoredContent(Manifest manifest, fs::path path, int fd)
    : manifest_(std::move(manifest)),
      path_(std::move(path)),
      fd_(fd),
      has_(manifest_.chunks()),
      missing_(manifest_.chunks()) {
  ::futimens(fd_, nullptr);
}

// The time of change is that of the last use, at its begin and its end: those of long ago go first.
StoredContent::~StoredContent() {
  ::futimens(fd_, nullptr);
  ::close(fd_);
}

bool StoredContent::is_at_its_path() const {
  struct stat named {};
  const struct stat own = info_of(fd_, path_);
  return ::stat(path_.c_str(), &named) == 0 && named.st_ino == own.st_ino && named.st_dev == own.st_dev;
}

void StoredContent::verify() {
  for (size_t chunk = 0; chunk < manifest_.chunks(); ++chunk) {
    try {
      read(chunk);
      has_[chunk] = true;
      --missing_;
    } catch (const FormatError&) {  // to be fetched
    }
  }
}

// The file is whole: others may read it, too. False if it was removed in the moment between the two locks.
bool StoredContent::share() {
  lock(fd_, LOCK_SH, path_);
  return is_at_its_path();
}

std::vector<uint32_t> StoredContent::missing() const {
  std::vector<uint32_t> chunks;
  for (size_t chunk = 0; chunk < has_.size(); ++chunk)
    if (!has_[chunk]) chunks.push_back(static_cast<uint32_t>(chunk));
  return chunks;
}

void StoredContent::put(size_t chunk, std::span<const std::byte> bytes) {
  if (!manifest_.is_chunk(chunk, bytes))
    throw FormatError("chunk " + std::to_string(chunk) + " of data " + to_text(manifest_.id()) +
                      " has not the hash that its manifest says");
  if (has_[chunk]) return;
  for (uint64_t at = manifest_.chunk_begin(chunk); !bytes.empty();) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(errno_text(path_.string()) + " (while writing)");
    bytes = bytes.subspan(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
  }
  has_[chunk] = true;
  if (--missing_ == 0 && !share())
    throw Error(path_.string() + ": was removed when it was complete; start again");
}

std::vector<std::byte> StoredContent::read(size_t chunk) const {
  std::vector<std::byte> bytes(manifest_.chunk_bytes(chunk));
  size_t done = 0;
  while (done < bytes.size()) {
    const auto at = static_cast<off_t>(manifest_.chunk_begin(chunk) + done);
    const ssize_t n = ::pread(fd_, bytes.data() + done, bytes.size() - done, at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(errno_text(path_.string()) + " (while reading)");
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  if (done < bytes.size() || !manifest_.is_chunk(chunk, bytes))
    throw FormatError(path_.string() + ": chunk " + std::to_string(chunk) + " is damaged");
  return bytes;
}

ContentStore::ContentStore(fs::path folder, uint64_t limit_bytes, std::string limit_name)
    : folder_(std::move(folder)), limit_bytes_(limit_bytes), limit_name_(std::move(limit_name)) {
  std::error_code failure;
  fs::create_directories(folder_, failure);
  if (failure) throw Error(folder_.string() + ": " + failure.message() + " (making a folder for data)");
}

fs::path ContentStore::data_path(const ContentId& id) const { return folder_ / (to_text(id) + kData); }
fs::path ContentStore::manifest_path(const ContentId& id) const {
  return folder_ / (to_text(id) + kManifest);
}

std::optional<Manifest> ContentStore::manifest(const ContentId& id) const {
  const fs::path path = manifest_path(id);
  std::error_code unreadable;
  if (!fs::exists(path, unreadable)) return std::nullopt;
  try {
    const std::string bytes = read_text_file(path, kLongestManifest);
    Manifest manifest = Manifest::parse(std::as_bytes(std::span(bytes)));
    if (manifest.id() == id) return manifest;
  } catch (const Error&) {  // damaged, or removed meanwhile: there is none
  }
  return std::nullopt;
}

std::unique_ptr<StoredContent> ContentStore::open(const Manifest& manifest) {
  const fs::path path = data_path(manifest.id());
  for (;;) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode));
    if (file.get() < 0) throw Error(errno_text(path.string()));
    const bool alone = lock(file.get(), LOCK_EX | LOCK_NB, path);
    if (!alone && !lock(file.get(), LOCK_SH | LOCK_NB, path)) return nullptr;
    std::unique_ptr<StoredContent> content(new StoredContent(manifest, path, file.get()));
    file.release();
    if (!content->is_at_its_path()) continue;  // it was removed before it was locked
    const auto size = static_cast<uint64_t>(info_of(content->fd_, path).st_size);
    if (alone && size != manifest.bytes()) {
      make_room(manifest);
      allocate(content->fd_, manifest.bytes(), path);
    }
    if (alone && !this->manifest(manifest.id())) {
      AtomicFile list(manifest_path(manifest.id()));
      list.write(manifest.encode());
      list.commit();
    }
    if (size > 0) content->verify();
    if (!content->complete() && !alone) {  // damaged since others opened it; they keep what they have
      ::unlink(path.c_str());
      continue;
    }
    if (!content->complete()) return content;
    if (!alone || content->share()) return content;
  }
}

// Another process may do the same: what is locked is in use, and what is gone is as good as removed.
void ContentStore::make_room(const Manifest& manifest) const {
  struct Entry {
    fs::path path;
    uint64_t bytes;
    timespec used;
  };
  std::vector<Entry> entries;
  uint64_t total = manifest.bytes();
  const fs::path own = data_path(manifest.id());
  std::error_code failure;
  for (fs::directory_iterator file(folder_, failure), end; !failure && file != end; file.increment(failure)) {
    struct stat info {};
    const fs::path path = file->path();
    if (!is_data_of_store(path) || path == own || ::stat(path.c_str(), &info) != 0) continue;
    entries.push_back({path, static_cast<uint64_t>(info.st_size), info.st_mtim});
    total += entries.back().bytes;
  }
  if (failure) throw Error(folder_.string() + ": " + failure.message() + " (looking for room)");
  std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (Entry& entry : entries) {
    // What is larger than the limit drives out nothing.
    if (total <= limit_bytes_ || manifest.bytes() > limit_bytes_) break;
    const Descriptor file(::open(entry.path.c_str(), O_RDWR | O_CLOEXEC));
    if (file.get() < 0 || !lock(file.get(), LOCK_EX | LOCK_NB, entry.path)) continue;
    spdlog::info("removes {}, the least recently used of {}", entry.path.filename().string(),
                 folder_.string());
    // In this order: data without a manifest is none, and counts until it goes.
    ::unlink(fs::path(entry.path).replace_extension(kManifest).c_str());
    ::unlink(entry.path.c_str());
    total -= entry.bytes;
  }
  if (total <= limit_bytes_) return;
  ::unlink(own.c_str());
  throw Error(fmt::format(
      "{}: data of {} bytes does not fit: with what is in use there {} bytes, the limit is {}; raise {}",
      folder_.string(), manifest.bytes(), total, limit_bytes_, limit_name_));
}

}  // namespace modelet::comm
