#include "comm/content_store.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace modelet::comm {
namespace {

namespace fs = std::filesystem;

constexpr const char *kData = ".data", *kManifest = ".manifest";
constexpr const char* kTurn = ".lock";  // whoever makes room has it
// Bytes of an entry's file whose locks say who uses it, and who fills it.
constexpr uint32_t kUse = 0, kFill = 1;
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

// False if somebody else's lock is in the way.
bool lock(int fd, LockKind kind, const fs::path& path, std::optional<uint32_t> byte = {}) {
  const LockResult result = try_lock(fd, kind, path, byte);
  if (result == LockResult::kUnknown)
    throw Error(path.string() + ": its file system knows no locks; give another folder");
  return result == LockResult::kTaken;
}

// For writing if the user may, else for reading what is there.
int open_data(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode);
  if (fd >= 0) return fd;
  const int why_not = errno;
  if (why_not == EACCES || why_not == EPERM || why_not == EROFS)
    if (const int read_only = ::open(path.c_str(), O_RDONLY | O_CLOEXEC); read_only >= 0) return read_only;
  errno = why_not;
  throw Error(errno_text(path.string()));
}

uint64_t allocated_bytes(const struct stat& info) {
  constexpr uint64_t kBlock = 512;  // whatever the file system's are
  return kBlock * static_cast<uint64_t>(info.st_blocks);
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
  errno = failure;
  throw Error(errno_text(path.string()) + ": data of " + std::to_string(bytes) + " bytes does not fit there");
}

}  // namespace

StoredContent::StoredContent(Manifest manifest, fs::path path, int fd, bool may_write)
    : manifest_(std::move(manifest)),
      path_(std::move(path)),
      fd_(fd),
      may_write_(may_write),
      state_(manifest_.chunks(), State::kUnknown),
      unknown_(manifest_.chunks()) {
  ::futimens(fd_, nullptr);  // fails for who may only read
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

std::vector<uint32_t> StoredContent::missing() const {
  std::vector<uint32_t> chunks;
  for (size_t chunk = 0; chunk < state_.size(); ++chunk)
    if (state_[chunk] == State::kMissing) chunks.push_back(static_cast<uint32_t>(chunk));
  return chunks;
}

void StoredContent::set(size_t chunk, State state) {
  unknown_ -= state_[chunk] == State::kUnknown;
  there_ -= state_[chunk] == State::kThere;
  there_ += state == State::kThere;
  state_[chunk] = state;
  if (complete()) release();
}

void StoredContent::release() {
  if (filling_) lock(fd_, LockKind::kNone, path_, kFill);
  filling_ = false;
}

void StoredContent::verify_next() {
  while (state_.at(next_) != State::kUnknown) ++next_;
  set(next_, look_at(next_) ? State::kThere : State::kMissing);
}

bool StoredContent::put(size_t chunk, std::span<const std::byte> bytes) {
  if (!manifest_.is_chunk(chunk, bytes))
    throw FormatError("chunk " + std::to_string(chunk) + " of data " + to_text(manifest_.id()) +
                      " has not the hash that its manifest says");
  if (state_[chunk] == State::kUnknown) set(chunk, look_at(chunk) ? State::kThere : State::kMissing);
  if (state_[chunk] == State::kThere) return false;
  if (!writable()) throw Error(path_.string() + ": is damaged, and others may fill it; start again");
  for (uint64_t at = manifest_.chunk_begin(chunk); !bytes.empty();) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(errno_text(path_.string()) + " (while writing)");
    bytes = bytes.subspan(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
  }
  set(chunk, State::kThere);
  return true;
}

std::optional<std::vector<std::byte>> StoredContent::read(size_t chunk) {
  if (chunk >= state_.size() || state_[chunk] == State::kMissing) return std::nullopt;
  auto bytes = look_at(chunk);
  set(chunk, bytes ? State::kThere : State::kMissing);
  return bytes;
}

std::optional<std::vector<std::byte>> StoredContent::look_at(size_t chunk) const {
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
  if (done < bytes.size() || !manifest_.is_chunk(chunk, bytes)) return std::nullopt;
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

std::unique_ptr<StoredContent> ContentStore::open(const Manifest& manifest,
                                                  const std::function<void()>& check) {
  auto content = open_unverified(manifest);
  while (content && !content->verified()) {
    if (check) check();
    content->verify_next();
    // Who cannot mend it holds nobody up who can.
    if (!content->may_write_ && content->there_ + content->unknown_ < manifest.chunks())
      throw Error(content->path().string() + ": is not whole, and this user may not write it");
  }
  return content;
}

std::unique_ptr<StoredContent> ContentStore::open_unverified(const Manifest& manifest) {
  const fs::path path = data_path(manifest.id());
  for (;;) {
    Descriptor file(open_data(path));
    const bool may_write = (::fcntl(file.get(), F_GETFL) & O_ACCMODE) == O_RDWR;
    const LockKind to_fill = may_write ? LockKind::kExclusive : LockKind::kShared;
    if (!lock(file.get(), LockKind::kShared, path, kUse) || !lock(file.get(), to_fill, path, kFill))
      return nullptr;
    std::unique_ptr<StoredContent> content(new StoredContent(manifest, path, file.get(), may_write));
    file.release();
    if (!content->is_at_its_path()) continue;  // it was removed before it was locked
    if (!may_write) return content;
    const struct stat info = info_of(content->fd_, path);
    if (static_cast<uint64_t>(info.st_size) != manifest.bytes()) {
      // One at a time: what another process begins meanwhile would not be counted.
      const std::optional<FileLock> turn = FileLock::take(folder_ / kTurn);
      if (!turn) return nullptr;
      make_room(manifest);
      try {
        allocate(content->fd_, manifest.bytes(), path);
      } catch (const Error&) {  // it has nothing to lose
        ::unlink(path.c_str());
        throw;
      }
    } else if (allocated_bytes(info) < manifest.bytes()) {
      // Its writer was killed while it reserved the blocks; or it is whole, and the file system compresses.
      allocate(content->fd_, manifest.bytes(), path);
    }
    if (!this->manifest(manifest.id())) {
      AtomicFile list(manifest_path(manifest.id()));
      list.write(manifest.encode());
      list.commit();
    }
    if (info.st_size == 0)
      for (size_t chunk = 0; chunk < manifest.chunks(); ++chunk)
        content->set(chunk, StoredContent::State::kMissing);
    if (content->complete()) content->release();  // it has no chunks
    return content;
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
    if (file.get() < 0 || !lock(file.get(), LockKind::kExclusive, entry.path)) continue;
    log_info("removes {}, the least recently used of {}", entry.path.filename().string(), folder_.string());
    // In this order: data without a manifest is none, and counts until it goes.
    ::unlink(fs::path(entry.path).replace_extension(kManifest).c_str());
    if (::unlink(entry.path.c_str()) == 0) total -= entry.bytes;
  }
  if (total <= limit_bytes_) return;
  ::unlink(own.c_str());
  throw Error(fmt::format(
      "{}: data of {} bytes does not fit: with what is in use there {} bytes, the limit is {}; raise {}",
      folder_.string(), manifest.bytes(), total, limit_bytes_, limit_name_));
}

}  // namespace modelet::comm
