// Content: files that are identified by a hash of their bytes, and travel in chunks.
//
//   ContentId   BLAKE2b-256 of some bytes. Whoever has the id can accept the bytes from anybody, and see
//               whether they are the right ones. A checksum would detect damage by a wire or a disk as well.
//               But in a store that many users write to, it would let one user pass off data as another's.
//   Manifest    the size of a file and the id of each of its chunks. The manifest's own id is the address of
//               the file.
//
// The encoded manifest, little-endian: "MLTM", u32 version (1), u64 bytes of the file, u32 bytes of a chunk
// (the last chunk may be shorter), u32 zero, then 32 bytes for each chunk. The same file in chunks of the
// same size always gets the same manifest. Plain values, without locks.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/system/file.h"

namespace modelet::comm {

struct ContentId {
  std::array<std::byte, 32> bytes{};
  friend auto operator<=>(const ContentId&, const ContentId&) = default;
};

ContentId content_id(std::span<const std::byte> bytes);
std::string to_text(const ContentId& id);  // 64 hexadecimal digits, lower case
// Throws FormatError for any text that to_text() does not write, because an id may become part of a path.
ContentId parse_content_id(std::string_view text);

// Bytes of a chunk: the usual size, and the limits. A message holds one chunk, and a lost connection costs
// a few chunks.
inline constexpr uint32_t kChunkBytes = 1 << 20, kSmallestChunk = 4 << 10, kLargestChunk = 2 << 20;
inline constexpr size_t kMostChunks = size_t{1} << 16;  // a manifest must fit into one message

// Fills `to` with the bytes of a file from `offset` on. Throws Error if they cannot be read.
using ReadBytes = std::function<void(uint64_t offset, std::span<std::byte> to)>;
ReadBytes reader_of(std::span<const std::byte> memory);  // which must outlive it
ReadBytes reader_of(const ReadFile& file);               // likewise

class Manifest {
 public:
  // Throws Error if the file would have more than kMostChunks chunks (64 GiB with chunks of the usual size).
  // `check` is called before each chunk, and may throw.
  static Manifest of(std::span<const std::byte> file, uint32_t chunk_bytes = kChunkBytes);
  static Manifest of(const ReadFile& file, uint32_t chunk_bytes = kChunkBytes,
                     const std::function<void()>& check = {});
  // Throws FormatError, which says what is wrong.
  static Manifest parse(std::span<const std::byte> bytes);
  std::vector<std::byte> encode() const;

  const ContentId& id() const { return id_; }
  uint64_t bytes() const { return bytes_; }
  size_t chunks() const { return chunks_.size(); }
  uint64_t chunk_begin(size_t chunk) const { return uint64_t{chunk_bytes_} * chunk; }
  size_t chunk_bytes(size_t chunk) const;
  // Whether `bytes` are those of this chunk. False if there is no such chunk.
  bool is_chunk(size_t chunk, std::span<const std::byte> bytes) const;

 private:
  Manifest() = default;
  template <class IdOf>
  static Manifest of(uint64_t bytes, uint32_t chunk_bytes, const IdOf& id_of);

  uint64_t bytes_ = 0;
  uint32_t chunk_bytes_ = kChunkBytes;
  std::vector<ContentId> chunks_;
  ContentId id_;
};

}  // namespace modelet::comm
