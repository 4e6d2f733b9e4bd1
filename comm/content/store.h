// ContentStore: a folder of files that are known by their content (comm/content/content.h), each whole or in
// part. The scheduler keeps the data of submitted runs in one, an agent what it has fetched.
//
// An entry is two files: ID.manifest, and ID.data of the full size. Which chunks are there is not written
// down anywhere: opening an entry reads it and compares the hash of each chunk (about 1 GB/s). A killed
// writer and later damage therefore look the same, as chunks that are missing.
//
// Several processes may share a folder and use one copy. One at a time fills an entry, or checks what there
// is of it, until it is whole or holds all that this process wants (release()). Others may use it meanwhile:
// a chunk that is there never changes, except by damage, which the process that finds it repairs. A process
// that may only read the folder uses what is whole.
//
// Chunks take room when they are written; a manifest alone takes none. When the folder would grow beyond its
// limit, or has more than 4096 entries, entries that nobody has open are removed, the least recently used
// first (use by a process that may only read does not count). Open entries are never removed. A process
// measures the folder again after it has written 64 MiB or 1/64 of the limit, whichever is less, but at most
// once a chunk. Several processes that write at once may together exceed the limit by as much for each of
// them.
//
// No call waits for another process: an entry that another process fills is not opened. There are two locks,
// on two bytes of the file (open file description locks, Linux 3.15). Every process that has the entry open
// shares the first; removing the entry needs it exclusively. The process that fills the entry has the second.
// All calls throw Error with path and reason if the disk fails. A StoredContent belongs to one thread at a
// time, a ContentStore to any.
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

// Room in the folder, shared by all entries of a store: their bytes count when they are written.
class StoreRoom;

class StoredContent {
 public:
  StoredContent(const StoredContent&) = delete;
  StoredContent& operator=(const StoredContent&) = delete;
  ~StoredContent();  // others may fill it, or remove it

  const Manifest& manifest() const { return manifest_; }
  const std::filesystem::path& path() const { return path_; }  // the file; every byte is right if complete()
  bool verified() const { return unknown_ == 0; }              // every chunk was checked
  bool complete() const { return verified() && there_ == manifest_.chunks(); }
  // This process may fill it: it is not whole, and was not released.
  bool writable() const { return filling_ && may_write_; }
  bool has(size_t chunk) const { return chunk < state_.size() && state_[chunk] == State::kThere; }
  std::vector<uint32_t> missing() const;  // chunks, ascending, as far as they were checked

  // Checks one chunk that was not checked yet; there must be one.
  void verify_next();
  // Adds a chunk; false if it is there already (a chunk that was not checked yet is checked for that).
  // FormatError if the bytes are not those of the manifest; Error if there is no room for them, or no longer.
  bool put(size_t chunk, std::span<const std::byte> bytes);
  // A chunk; nothing if it is not there, or no longer: it counts as missing from then on.
  std::optional<std::vector<std::byte>> read(size_t chunk);
  // All that this process wants is there: others may fill the entry. A whole entry was released when it
  // became whole.
  void release();

 private:
  friend class ContentStore;
  enum class State : uint8_t { kUnknown, kMissing, kThere };  // of a chunk
  StoredContent(Manifest manifest, std::filesystem::path path, int fd, bool may_write,
                std::shared_ptr<StoreRoom> room);
  std::optional<std::vector<std::byte>> look_at(size_t chunk) const;
  void set(size_t chunk, State state);

  const Manifest manifest_;
  const std::filesystem::path path_;
  const int fd_;  // holds the locks
  const bool may_write_;
  const std::shared_ptr<StoreRoom> room_;
  bool filling_ = true;  // has the lock for that
  std::vector<State> state_;
  size_t unknown_, there_ = 0, next_ = 0;  // chunks; chunks; where verify_next() goes on
};

class ContentStore {
 public:
  // Makes the folder if need be. `limit_name`: the option that sets the limit, for messages.
  ContentStore(std::filesystem::path folder, uint64_t limit_bytes, std::string limit_name);

  // Of all entries, whole or not.
  std::set<ContentId> contents() const;
  // The manifest of an entry; nothing if there is no such entry.
  std::optional<Manifest> manifest(const ContentId& id) const;

  // Opens an entry, or makes an empty one, and checks all of it: it is then complete or writable. Null while
  // another process fills it: ask again later. Throws Error if it does not fit into the limit beside the data
  // in use, or on the disk. That takes no room yet; put() does. `check` is called before each chunk, and may
  // throw.
  std::unique_ptr<StoredContent> open(const Manifest& manifest, const std::function<void()>& check = {});
  // The same, but does not check what is there.
  std::unique_ptr<StoredContent> open_unverified(const Manifest& manifest);

  // Makes a whole entry of a file that has these bytes, by a hard link where the file system allows it: nobody
  // may change the file from then on. Null while another process fills the entry.
  std::unique_ptr<StoredContent> adopt(const Manifest& manifest, const std::filesystem::path& file);

  // Gives an entry's file another name as well: a hard link, or a copy. Does
  // not look at its bytes, of which some may be missing. False if there is no such entry.
  bool link_to(const ContentId& id, const std::filesystem::path& to) const;

  // False if somebody has the entry open.
  bool remove(const ContentId& id);

 private:
  std::filesystem::path data_path(const ContentId& id) const;
  std::filesystem::path manifest_path(const ContentId& id) const;

  const std::filesystem::path folder_;
  const std::shared_ptr<StoreRoom> room_;
};

}  // namespace modelet::comm
