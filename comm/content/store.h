// ContentStore: a folder of files that are identified by their content (comm/content/content.h). Each file
// may be there in whole or in part. The scheduler has a store for the data of submitted runs, and an agent
// has one for what it fetched.
//
// An entry is two files: ID.manifest, and ID.data, which has the full size from the start. A third one,
// ID.senders, has the names of those who have sent all of it, one a line. No file records
// which chunks are there. Opening an entry therefore reads the data and compares the hash of each chunk
// (about 1 GB/s). A chunk that a killed writer did not finish and a chunk that was damaged later, or
// that the disk cannot read, look the same: all are missing.
//
// Several processes may share a folder and use one copy of the data. Only one process at a time may fill an
// entry, or check which chunks it has. No other process can open the entry until it is whole, or until the
// one that fills it has all the chunks that it wants (release()). Processes that have the entry open
// already may use it meanwhile: a chunk that is there never changes, except by damage, and the process that
// finds the damage repairs it. A process that may only read the folder can use whole entries.
//
// Chunks take room when they are written; a manifest alone takes none. When the folder would grow beyond
// its limit, or has more than 4096 entries, entries that nobody has open are removed, the least recently used
// first, except those of protect(). Use by a process that may only read does not count. Open entries are
// never removed. A process measures the folder again after it has written 64 MiB or 1/64 of the limit,
// whichever is less, but at most once a chunk. Processes that write at the same time do not see each other's bytes in
// between, so each of them may exceed the limit by that amount.
//
// No call waits for another process: an entry that another process is filling is not opened. There are two
// locks, on two bytes of the data file (open file description locks, Linux 3.15). Every process that has
// the entry open shares the first lock; removing the entry needs that lock exclusively. The process that
// fills the entry has the second lock.
// All calls throw Error, with path and reason, if the disk fails. One thread at a time may use a
// StoredContent; any thread may use a ContentStore.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "comm/content/content.h"

namespace modelet::comm {

// Counts the bytes in the folder against the limit. All entries of a store share one StoreRoom. Bytes count
// when they are written.
class StoreRoom;

class StoredContent {
 public:
  StoredContent(const StoredContent&) = delete;
  StoredContent& operator=(const StoredContent&) = delete;
  ~StoredContent();  // others may fill the entry or remove it from then on

  const Manifest& manifest() const { return manifest_; }
  const std::filesystem::path& path() const { return path_; }  // the data file; right if complete()
  bool verified() const { return unknown_ == 0; }              // every chunk was checked
  bool complete() const { return verified() && there_ == manifest_.chunks(); }
  // This process may fill the entry: it is not whole, was not released, and its file can be written.
  bool writable() const { return filling_ && may_write_; }
  bool has(size_t chunk) const { return chunk < state_.size() && state_[chunk] == State::kThere; }
  std::vector<uint32_t> missing() const;  // of the chunks that were checked; ascending

  // Checks one chunk that was not checked yet. There must be one: check verified() first.
  void verify_next();
  // Adds a chunk. Returns false if the chunk is there already; to find out, it checks a chunk that was not
  // checked yet. Throws FormatError if the bytes do not match the manifest. Throws Error if there is no
  // room for them, or if this process may no longer fill the entry. `again`: writes the chunk in any case, and
  // checks nothing before, so that the time tells nobody whether it was there.
  bool put(size_t chunk, std::span<const std::byte> bytes, bool again = false);
  // Returns when the chunks that were put are on the disk, so that a power cut does not take them.
  void sync();
  // Reads a chunk. Returns nothing if the chunk is missing or has been damaged; a damaged chunk counts as
  // missing from then on.
  std::optional<std::vector<std::byte>> read(size_t chunk);
  // This process has all the chunks that it wants, so others may fill the entry. An entry that becomes
  // whole is released without this call.
  void release();

 private:
  friend class ContentStore;
  enum class State : uint8_t { kUnknown, kMissing, kThere };  // of one chunk
  StoredContent(Manifest manifest, std::filesystem::path path, int fd, bool may_write,
                std::shared_ptr<StoreRoom> room);
  std::optional<std::vector<std::byte>> look_at(size_t chunk) const;
  void set(size_t chunk, State state);

  const Manifest manifest_;
  const std::filesystem::path path_;
  const int fd_;  // holds the locks
  const bool may_write_;
  const std::shared_ptr<StoreRoom> room_;
  bool filling_ = true;  // whether this object has the lock for filling the entry
  std::vector<State> state_;
  // unknown_ and there_ count chunks. next_ is where verify_next() continues.
  size_t unknown_, there_ = 0, next_ = 0;
};

class ContentStore {
 public:
  // Makes the folder if it does not exist. `limit_name` is the option that sets the limit, for messages.
  ContentStore(std::filesystem::path folder, uint64_t limit_bytes, std::string limit_name);

  // The ids of all entries, whole or not.
  std::set<ContentId> contents() const;
  // The manifest of an entry, or nothing if there is no such entry.
  std::optional<Manifest> manifest(const ContentId& id) const;
  // Bytes that the entry, which need not exist, would still take on the disk until it is whole.
  uint64_t bytes_to_come(const Manifest& manifest) const;

  // Opens an entry, or makes an empty one, and checks all of it. The entry is then complete or writable.
  // Returns null while another process fills the entry: ask again later. Throws Error if the data does not
  // fit on the disk, or not into the limit beside the data in use. Opening takes no room yet; put() does.
  // Also throws Error if the entry is incomplete and this user may not write to it. `check` is called
  // before each chunk, and may throw.
  std::unique_ptr<StoredContent> open(const Manifest& manifest, const std::function<void()>& check = {});
  // Like open(), but does not check which chunks are there.
  std::unique_ptr<StoredContent> open_unverified(const Manifest& manifest);

  // Makes a whole entry from a file that has these bytes, by a hard link where the file system allows it.
  // Nobody may change the file from then on. Returns null while another process fills the entry.
  std::unique_ptr<StoredContent> adopt(const Manifest& manifest, const std::filesystem::path& file);

  // Gives an entry's data file another name as well, by a hard link or a copy. Does not check the bytes,
  // some of which may be missing. False if there is no such entry.
  bool link_to(const ContentId& id, const std::filesystem::path& to) const;

  // Throws Error as open() would for an entry of `bytes` bytes that is not there yet.
  void require_room(uint64_t bytes) const;

  // Notes that somebody has sent all bytes of an entry, and so proved to have them. That is known as long as the
  // entry exists, also to other processes. `name` has no line end.
  void note_sender(const ContentId& id, const std::string& name);
  bool has_sent(const ContentId& id, const std::string& name) const;

  // The addresses of all entries, in the order in which they would be removed to make room.
  std::vector<std::string> in_order_of_removal() const;
  // False if somebody has the entry open.
  bool remove(const ContentId& id);
  // What this object does not remove to make room, and what it removes only if removing all the rest does not
  // make enough. These entries need not be there.
  void protect(std::set<std::string> kept, std::set<std::string> last);

 private:
  std::filesystem::path data_path(const ContentId& id) const;
  std::filesystem::path manifest_path(const ContentId& id) const;
  std::filesystem::path senders_path(const ContentId& id) const;

  const std::filesystem::path folder_;
  const std::shared_ptr<StoreRoom> room_;
};

}  // namespace modelet::comm
