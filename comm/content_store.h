// ContentStore: a folder of files that are known by their content (comm/content.h), each whole or in part.
// The scheduler keeps the data of submitted runs in one, an agent what it has fetched.
//
// An entry is two files: ID.manifest, and ID.data of the full size. Which chunks are there is not written
// down anywhere: an entry that was opened is read, and each chunk's hash compared (about 1 GB/s). So whatever
// kills the writer, and whatever damages the file later, is seen the same way, as chunks that are missing.
//
// Several processes may share a folder, and use one copy. One at a time fills an entry, or looks at what
// there is of it: until it is whole, or holds all that this one wants (release()). Others may use it
// meanwhile: a chunk that is there is never changed, but by damage, which who finds it mends. Who may only
// read the folder uses what is whole. When the folder would grow beyond its limit, entries that nobody has
// open are removed, the least recently used first (use by who may only read does not count). What is open is
// never removed.
//
// No call waits for another process: what another fills is not opened. There are two locks, on two bytes of
// the file (open file description locks, Linux 3.15): who has the entry open shares one of them, which who
// removes it wants alone; who fills it has the other. All throw Error with path and reason if the disk does
// not let them. A StoredContent belongs to one thread at a time, a ContentStore to any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/content.h"

namespace modelet::comm {

class StoredContent {
 public:
  StoredContent(const StoredContent&) = delete;
  StoredContent& operator=(const StoredContent&) = delete;
  ~StoredContent();  // others may fill it, or remove it

  const Manifest& manifest() const { return manifest_; }
  const std::filesystem::path& path() const { return path_; }  // the file, right in all bytes if complete()
  bool verified() const { return unknown_ == 0; }              // each chunk was looked at
  bool complete() const { return verified() && there_ == manifest_.chunks(); }
  // This one may fill it: it is not whole, and was not released.
  bool writable() const { return filling_ && may_write_; }
  bool has(size_t chunk) const { return chunk < state_.size() && state_[chunk] == State::kThere; }
  std::vector<uint32_t> missing() const;  // chunks, ascending; as far as they were looked at

  // Looks at one chunk that was not looked at yet; there must be one.
  void verify_next();
  // Adds a chunk; false if it was there already (for which one that was not looked at yet is looked at).
  // FormatError if the bytes are not those of the manifest.
  bool put(size_t chunk, std::span<const std::byte> bytes);
  // A chunk; nothing if it is not there, or no longer: then it is missing from now on.
  std::optional<std::vector<std::byte>> read(size_t chunk);
  // All is there that this one wants: others may fill it. What is whole was released when it became that.
  void release();

 private:
  friend class ContentStore;
  enum class State : uint8_t { kUnknown, kMissing, kThere };  // of a chunk
  StoredContent(Manifest manifest, std::filesystem::path path, int fd, bool may_write);
  bool is_at_its_path() const;
  std::optional<std::vector<std::byte>> look_at(size_t chunk) const;
  void set(size_t chunk, State state);

  const Manifest manifest_;
  const std::filesystem::path path_;
  const int fd_;  // holds the locks
  const bool may_write_;
  bool filling_ = true;  // has the lock for that
  std::vector<State> state_;
  size_t unknown_, there_ = 0, next_ = 0;  // chunks; chunks; where verify_next() goes on
};

class ContentStore {
 public:
  // Makes the folder if need be. `limit_name`: the option that sets the limit, for messages.
  ContentStore(std::filesystem::path folder, uint64_t limit_bytes, std::string limit_name);

  // The manifest of an entry; nothing if there is none.
  std::optional<Manifest> manifest(const ContentId& id) const;

  // Opens an entry, or makes an empty one, and looks at all of it: it is complete, or writable. Null while
  // another process fills it, or makes room for another one: ask again later. Throws Error if it does not
  // fit: into the limit beside what is in use, or on the disk. `check` is called before each chunk, and may
  // throw.
  std::unique_ptr<StoredContent> open(const Manifest& manifest, const std::function<void()>& check = {});
  // The same, but looks at nothing that is there.
  std::unique_ptr<StoredContent> open_unverified(const Manifest& manifest);

 private:
  std::filesystem::path data_path(const ContentId& id) const;
  std::filesystem::path manifest_path(const ContentId& id) const;
  void make_room(const Manifest& manifest) const;

  const std::filesystem::path folder_;
  const uint64_t limit_bytes_;
  const std::string limit_name_;
};

}  // namespace modelet::comm
