#include "comm/content/store.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/system/descriptor.h"
#include "base/system/file.h"
#include "base/system/log.h"

namespace modelet::comm {
namespace {

namespace fs = std::filesystem;

constexpr const char *kData = ".data", *kManifest = ".manifest", *kSenders = ".senders";
// The bytes of the data file that are locked: by everybody who uses the entry, and by the one who fills it.
constexpr uint32_t kUse = 0, kFill = 1;
constexpr mode_t kMode = 0644;
constexpr size_t kLongestManifest = 64 + kMostChunks * sizeof(ContentId);

struct stat info_of(int fd, const fs::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw Error(errno_text(path.string()));
  return info;
}

// Whether a file is the data of an entry. The folder may also hold other files.
bool is_data_of_store(const fs::path& path) {
  if (path.extension() != kData) return false;
  try {
    parse_content_id(path.stem().string());
    return true;
  } catch (const FormatError&) {
    return false;
  }
}

// False if somebody else has a lock that conflicts.
bool lock(int fd, LockKind kind, const fs::path& path, std::optional<uint32_t> byte = {}) {
  const LockResult result = try_lock(fd, kind, path, byte);
  if (result == LockResult::kUnknown)
    throw Error(path.string() + ": its file system knows no locks; give another folder");
  return result == LockResult::kTaken;
}

// Opens the file for writing if the user may write it, else for reading.
int open_data(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode);
  if (fd >= 0) return fd;
  const int why_not = errno;
  if (why_not == EACCES || why_not == EPERM || why_not == EROFS)
    if (const int read_only = ::open(path.c_str(), O_RDONLY | O_CLOEXEC); read_only >= 0) return read_only;
  errno = why_not;
  throw Error(errno_text(path.string()));
}

// The disk space that the file takes. It is less than the file's size while the file is being filled.
uint64_t taken_bytes(const struct stat& info) {
  constexpr uint64_t kBlock = 512;  // the unit of st_blocks on every file system
  return std::min(kBlock * static_cast<uint64_t>(info.st_blocks), static_cast<uint64_t>(info.st_size));
}

// Whether a part of the file takes less disk space than its size. True where the file system does not say.
bool has_hole(int fd, uint64_t begin, size_t bytes) {
  const off_t hole = ::lseek(fd, static_cast<off_t>(begin), SEEK_HOLE);
  return hole < 0 || static_cast<uint64_t>(hole) < begin + bytes;
}

// Gives the file its full size without allocating blocks. A full disk is noticed before anything is
// fetched.
void set_size(int fd, uint64_t bytes, const fs::path& path) {
  struct statvfs disk {};
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0 || ::fstatvfs(fd, &disk) != 0)
    throw Error(errno_text(path.string()) + ": data of " + std::to_string(bytes) +
                " bytes does not fit there");
  if (const uint64_t left = uint64_t{disk.f_bavail} * disk.f_frsize; left < bytes)
    throw Error(fmt::format("{}: data of {} bytes does not fit there, the disk has {} left", path.string(),
                            bytes, left));
}

// False if the file was removed, and perhaps made anew, since it was opened.
bool is_at_path(int fd, const fs::path& path) {
  struct stat named {};
  const struct stat own = info_of(fd, path);
  return ::stat(path.c_str(), &named) == 0 && named.st_ino == own.st_ino && named.st_dev == own.st_dev;
}

// Locks the entry exclusively; returns nothing while somebody has the entry open. An entry locked in this
// way may be removed, because nobody can open it meanwhile.
std::optional<Descriptor> locked_alone(const fs::path& path) {
  std::optional<Descriptor> file(std::in_place, ::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file->get() < 0 || !lock(file->get(), LockKind::kExclusive, path)) return std::nullopt;
  if (!is_at_path(file->get(), path)) return std::nullopt;  // it was removed meanwhile
  return file;
}

// The manifest goes first. If this is cut short, data without a manifest is left: that is not an entry, and
// its room can still be reclaimed.
bool unlink_entry(const fs::path& data) {
  ::unlink(fs::path(data).replace_extension(kSenders).c_str());
  ::unlink(fs::path(data).replace_extension(kManifest).c_str());
  return ::unlink(data.c_str()) == 0;
}

}  // namespace

// Other processes may remove entries at the same time. An entry that is locked is in use, and an entry that
// is missing counts as removed.
class StoreRoom {
 public:
  StoreRoom(fs::path folder, uint64_t limit, std::string limit_name)
      : folder_(std::move(folder)), limit_(limit), limit_name_(std::move(limit_name)) {}

  // Throws Error if an entry of `bytes` bytes does not fit beside the data in use. `own` is its path; this
  // process has it open.
  void require(const fs::path& own, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    left_ = 0;  // the next take() measures the folder again
    const std::vector<Entry> entries = others(own);
    uint64_t all = bytes;
    for (const Entry& entry : entries) all += entry.size;
    if (all > limit_) {
      all = bytes;
      for (const Entry& entry : entries)
        if (entry.kept || !locked_alone(entry.path)) all += entry.size;
    }
    if (all > limit_) throw does_not_fit(bytes, all);
    for (size_t oldest = 0; entries.size() - oldest >= kMostEntries && oldest < entries.size(); ++oldest)
      remove(entries[oldest]);
  }

  // Reserves bytes that are about to be written to the entry `own`. Removes entries if that makes the room.
  void take(const fs::path& own, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (left_ < bytes) {
      const std::vector<Entry> entries = others(own);
      struct stat info {};
      uint64_t all = ::stat(own.c_str(), &info) == 0 ? taken_bytes(info) : 0;
      for (const Entry& entry : entries) all += entry.taken;
      for (const Entry& entry : entries)
        if (all + bytes > limit_ && remove(entry)) all -= entry.taken;
      if (all + bytes > limit_) throw does_not_fit(bytes, all + bytes);
      left_ = std::max(bytes, std::min({kAtOnce, limit_ / kLimitDivisor, limit_ - all}));
    }
    left_ -= bytes;
  }

  void protect(std::set<std::string> kept, std::set<std::string> last) {
    const std::lock_guard lock(mutex_);
    kept_ = std::move(kept);
    last_ = std::move(last);
  }

  std::vector<std::string> in_order_of_removal() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> addresses;
    for (const Entry& entry : others({})) addresses.push_back(entry.path.stem().string());
    return addresses;
  }

 private:
  struct Entry {
    fs::path path;
    uint64_t size, taken;
    bool kept, last;
    timespec used;
  };
  // A process reserves this much at once. It does not see what other processes take meanwhile, so it must
  // be little, and a small part of the limit.
  static constexpr uint64_t kAtOnce = uint64_t{64} << 20, kLimitDivisor = 64;
  static constexpr size_t kMostEntries = 4096;  // more would make listing the folder slow

  // All entries except `own`, in the order in which they are removed.
  std::vector<Entry> others(const fs::path& own) const {
    std::vector<Entry> entries;
    std::error_code failure;
    for (fs::directory_iterator file(folder_, failure), end; !failure && file != end;
         file.increment(failure)) {
      struct stat info {};
      const fs::path path = file->path();
      if (!is_data_of_store(path) || path == own || ::stat(path.c_str(), &info) != 0) continue;
      entries.push_back({path, static_cast<uint64_t>(info.st_size), taken_bytes(info),
                         kept_.contains(path.stem().string()), last_.contains(path.stem().string()),
                         info.st_mtim});
    }
    if (failure) throw Error(folder_.string() + ": " + failure.message() + " (looking for room)");
    std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
      return std::tuple(a.last, a.used.tv_sec, a.used.tv_nsec) <
             std::tuple(b.last, b.used.tv_sec, b.used.tv_nsec);
    });
    return entries;
  }

  bool remove(const Entry& entry) const {
    if (entry.kept) return false;
    const auto file = locked_alone(entry.path);
    if (!file) return false;
    // Not for the log of a run: its owner would learn what others have there.
    log_for_owner("removes {} from {} to make room", entry.path.filename().string(), folder_.string());
    return unlink_entry(entry.path);
  }

  Error does_not_fit(uint64_t bytes, uint64_t all) const {
    return Error(fmt::format(
        "{}: data of {} bytes does not fit: with what is in use there {} bytes, the limit is {}; raise {}",
        folder_.string(), bytes, all, limit_, limit_name_));
  }

  const fs::path folder_;
  const uint64_t limit_;
  const std::string limit_name_;
  mutable std::mutex mutex_;
  std::set<std::string> kept_, last_;  // addresses; those of last_ are removed after all others
  uint64_t left_ = 0;                  // bytes that may be written before the folder is measured again
};

StoredContent::StoredContent(Manifest manifest, fs::path path, int fd, bool may_write,
                             std::shared_ptr<StoreRoom> room)
    : manifest_(std::move(manifest)),
      path_(std::move(path)),
      fd_(fd),
      may_write_(may_write),
      room_(std::move(room)),
      state_(manifest_.chunks(), State::kUnknown),
      unknown_(manifest_.chunks()) {
  ::futimens(fd_, nullptr);  // fails for a process that may only read
}

// The file's modification time is the time of its last use. It is set when the use begins and when it ends.
// The entries with the oldest times are removed first.
StoredContent::~StoredContent() {
  ::futimens(fd_, nullptr);
  ::close(fd_);
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

bool StoredContent::put(size_t chunk, std::span<const std::byte> bytes, bool again) {
  if (!manifest_.is_chunk(chunk, bytes))
    throw FormatError("chunk " + std::to_string(chunk) + " of data " + to_text(manifest_.id()) +
                      " does not have the hash in its manifest");
  if (state_[chunk] == State::kUnknown && !again)
    set(chunk, look_at(chunk) ? State::kThere : State::kMissing);
  const bool was_there = state_[chunk] == State::kThere;
  if (was_there && !(again && may_write_)) return false;
  if (!was_there && !writable())
    throw Error(path_.string() + ": is damaged, and others may fill it; start again");
  if (!was_there && has_hole(fd_, manifest_.chunk_begin(chunk), bytes.size()))
    room_->take(path_, bytes.size());
  for (uint64_t at = manifest_.chunk_begin(chunk); !bytes.empty();) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(errno_text(path_.string()) + " (while writing)");
    bytes = bytes.subspan(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
  }
  set(chunk, State::kThere);
  return !was_there;
}

void StoredContent::sync() {
  if (::fdatasync(fd_) != 0) throw Error(errno_text(path_.string()) + " (while writing)");
}

std::optional<std::vector<std::byte>> StoredContent::read(size_t chunk) {
  if (chunk >= state_.size() || state_[chunk] == State::kMissing) return std::nullopt;
  auto bytes = look_at(chunk);
  set(chunk, bytes ? State::kThere : State::kMissing);
  return bytes;
}

std::optional<std::vector<std::byte>> StoredContent::look_at(size_t chunk) const {
  std::vector<std::byte> bytes(manifest_.chunk_bytes(chunk));
  const auto read = read_at(fd_, manifest_.chunk_begin(chunk), bytes, path_);
  if (!read || *read < bytes.size() || !manifest_.is_chunk(chunk, bytes)) return std::nullopt;
  return bytes;
}

ContentStore::ContentStore(fs::path folder, uint64_t limit_bytes, std::string limit_name)
    : folder_(std::move(folder)),
      room_(std::make_shared<StoreRoom>(folder_, limit_bytes, std::move(limit_name))) {
  std::error_code failure;
  fs::create_directories(folder_, failure);
  if (failure) throw Error(folder_.string() + ": " + failure.message() + " (making a folder for data)");
}

fs::path ContentStore::data_path(const ContentId& id) const { return folder_ / (to_text(id) + kData); }
fs::path ContentStore::manifest_path(const ContentId& id) const {
  return folder_ / (to_text(id) + kManifest);
}

fs::path ContentStore::senders_path(const ContentId& id) const { return folder_ / (to_text(id) + kSenders); }

std::set<ContentId> ContentStore::contents() const {
  std::set<ContentId> contents;
  std::error_code failure;
  for (fs::directory_iterator file(folder_, failure), end; !failure && file != end; file.increment(failure))
    if (is_data_of_store(file->path())) contents.insert(parse_content_id(file->path().stem().string()));
  if (failure) throw Error(folder_.string() + ": " + failure.message() + " (looking at what is there)");
  return contents;
}

std::optional<Manifest> ContentStore::manifest(const ContentId& id) const {
  const fs::path path = manifest_path(id);
  std::error_code unreadable;
  if (!fs::exists(path, unreadable)) return std::nullopt;
  try {
    const std::string bytes = read_text_file(path, kLongestManifest);
    Manifest manifest = Manifest::parse(std::as_bytes(std::span(bytes)));
    if (manifest.id() == id) return manifest;
  } catch (const Error&) {  // damaged, or removed meanwhile: treated as absent
  }
  return std::nullopt;
}

uint64_t ContentStore::bytes_to_come(const Manifest& manifest) const {
  struct stat info {};
  const bool exists = ::stat(data_path(manifest.id()).c_str(), &info) == 0;
  return manifest.bytes() - std::min(manifest.bytes(), exists ? taken_bytes(info) : 0);
}

std::unique_ptr<StoredContent> ContentStore::open(const Manifest& manifest,
                                                  const std::function<void()>& check) {
  auto content = open_unverified(manifest);
  while (content && !content->verified()) {
    if (check) check();
    content->verify_next();
    // A process that cannot repair the entry must not keep others from repairing it.
    if (!content->may_write_ && content->there_ + content->unknown_ < manifest.chunks())
      throw Error(content->path().string() + ": is incomplete, and this user may not write to it");
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
    std::unique_ptr<StoredContent> content(new StoredContent(manifest, path, file.get(), may_write, room_));
    file.release();
    if (!is_at_path(content->fd_, path)) continue;  // the file was removed before it was locked
    if (!may_write) return content;
    const struct stat info = info_of(content->fd_, path);
    if (static_cast<uint64_t>(info.st_size) != manifest.bytes()) {
      try {
        room_->require(path, manifest.bytes());
        set_size(content->fd_, manifest.bytes(), path);
      } catch (const Error&) {  // nothing is lost: the file is new, or not of the right size
        ::unlink(path.c_str());
        throw;
      }
    }
    if (!this->manifest(manifest.id())) {
      AtomicFile list(manifest_path(manifest.id()));
      list.write(manifest.encode());
      list.commit();
    }
    if (info.st_size == 0)
      for (size_t chunk = 0; chunk < manifest.chunks(); ++chunk)
        content->set(chunk, StoredContent::State::kMissing);
    if (content->complete()) content->release();  // an entry without chunks is whole
    return content;
  }
}

std::unique_ptr<StoredContent> ContentStore::adopt(const Manifest& manifest, const fs::path& file) {
  remove(manifest.id());
  const bool linked = ::link(file.c_str(), data_path(manifest.id()).c_str()) == 0;
  auto content = open_unverified(manifest);
  if (!content) return nullptr;
  if (linked) {
    for (size_t chunk = 0; chunk < manifest.chunks(); ++chunk)
      content->set(chunk, StoredContent::State::kThere);
    return content;
  }
  const ReadFile source(file);  // no link: the entry is open elsewhere, or on another file system
  if (source.bytes() != manifest.bytes()) throw Error(file.string() + ": was changed while it was read");
  std::vector<std::byte> bytes;
  for (size_t chunk = 0; chunk < manifest.chunks(); ++chunk) {
    bytes.resize(manifest.chunk_bytes(chunk));
    source.read(manifest.chunk_begin(chunk), bytes);
    content->put(chunk, bytes);
  }
  return content;
}

bool ContentStore::link_to(const ContentId& id, const fs::path& to) const {
  std::error_code failure;
  if (!fs::exists(data_path(id), failure)) return false;
  link_or_copy(data_path(id), to);
  return true;
}

void ContentStore::require_room(uint64_t bytes) const { room_->require({}, bytes); }

void ContentStore::note_sender(const ContentId& id, const std::string& name) {
  if (has_sent(id, name)) return;
  const fs::path path = senders_path(id);
  std::error_code none;
  AtomicFile list(path);
  list.write((fs::exists(path, none) ? read_text_file(path) : "") + name + "\n");
  list.commit();
}

bool ContentStore::has_sent(const ContentId& id, const std::string& name) const {
  std::error_code none;
  if (!fs::exists(senders_path(id), none) || !fs::exists(manifest_path(id), none)) return false;
  std::istringstream lines(read_text_file(senders_path(id)));
  for (std::string line; std::getline(lines, line);)
    if (line == name) return true;
  return false;
}

void ContentStore::protect(std::set<std::string> kept, std::set<std::string> last) {
  room_->protect(std::move(kept), std::move(last));
}

std::vector<std::string> ContentStore::in_order_of_removal() const { return room_->in_order_of_removal(); }

bool ContentStore::remove(const ContentId& id) {
  const fs::path path = data_path(id);
  const auto file = locked_alone(path);
  return file && unlink_entry(path);
}

}  // namespace modelet::comm
