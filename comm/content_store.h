// ContentStore: a folder of files that are known by their content (comm/content.h), each whole or in part.
// The scheduler keeps the data of submitted runs in one, an agent what it has fetched.
//
// An entry is two files: ID.manifest, and ID.data of the full size. Which chunks are there is not written
// down anywhere: opening an entry reads it and compares each chunk's hash (about 1 GB/s). So whatever kills
// the writer, and whatever damages the file later, is seen the same way, as chunks that are missing.
//
// Several processes may share a folder: who fills an entry has it alone, until it is whole; then all use one
// copy. When the folder would grow beyond its limit, entries that nobody has open are removed, the least
// recently used first. What is open is never removed.
//
// All throw Error with path and reason if the disk does not let them. A StoredContent belongs to one thread
// at a time, a ContentStore to any.
#pragma once

#include <cstdint>
#include <filesystem>
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
  bool complete() const { return missing_ == 0; }
  bool has(size_t chunk) const { return chunk < has_.size() && has_[chunk]; }
  std::vector<uint32_t> missing() const;  // chunks, ascending

  // Adds a chunk. FormatError if the bytes are not those of the manifest.
  void put(size_t chunk, std::span<const std::byte> bytes);
  // A chunk that is there. FormatError if its bytes on disk are no longer those of the manifest.
  std::vector<std::byte> read(size_t chunk) const;

 private:
  friend class ContentStore;
  StoredContent(Manifest manifest, std::filesystem::path path, int fd);
  bool is_at_its_path() const;
  void verify();
  bool share();

  const Manifest manifest_;
  const std::filesystem::path path_;
  const int fd_;  // holds the lock: exclusive while chunks are missing, then shared
  std::vector<bool> has_;
  size_t missing_;
};

class ContentStore {
 public:
  // Makes the folder if need be. `limit_name`: the option that sets the limit, for messages.
  ContentStore(std::filesystem::path folder, uint64_t limit_bytes, std::string limit_name);

  // The manifest of an entry; nothing if there is none.
  std::optional<Manifest> manifest(const ContentId& id) const;

  // Opens an entry, or makes an empty one. Null while another process fills it: ask again later. Throws Error
  // if it does not fit: into the limit beside what is in use, or on the disk.
  std::unique_ptr<StoredContent> open(const Manifest& manifest);

 private:
  std::filesystem::path data_path(const ContentId& id) const;
  std::filesystem::path manifest_path(const ContentId& id) const;
  void make_room(const Manifest& manifest) const;

  const std::filesystem::path folder_;
  const uint64_t limit_bytes_;
  const std::string limit_name_;
};

}  // namespace modelet::comm
