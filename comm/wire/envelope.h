// Envelope: the small first part of every message between ranks. It says which operation the message
// belongs to and what its payload holds. The byte layout is a FlatBuffer (comm/wire/envelope.fbs,
// docs/wire_format.md).
//
// Everything that is parsed here comes from outside. It is verified and checked against limits before
// anything is allocated, and a FormatError says what is wrong. Plain values, without locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/wire/tag.h"

namespace modelet::comm {

// Grows when the meaning of a message changes; docs/wire_format.md says what earlier versions meant.
inline constexpr uint16_t kWireVersion = 4;
inline constexpr size_t kMaxBlocks = 4096;               // in a message
inline constexpr size_t kMaxEnvelopeBytes = 128 * 1024;  // enough for kMaxBlocks blocks

// BlockHeader::codec of a block of bytes, which has no rows and columns.
inline constexpr uint8_t kBytesBlock = 255;

// One block of the payload: a matrix, or bytes.
struct BlockHeader {
  uint32_t rows = 0, cols = 0;
  uint8_t codec = 0;   // Codec::id(), or kBytesBlock
  uint64_t bytes = 0;  // encoded size
  bool operator==(const BlockHeader&) const = default;
};

struct Envelope {
  uint64_t run = 0;
  uint32_t epoch = 0;
  Tag tag;
  uint32_t sender = 0;        // rank
  bool lz4 = false;           // the payload is one LZ4 block of raw_bytes
  uint64_t raw_bytes = 0;     // payload before LZ4 = sum of the blocks' bytes
  uint64_t payload_hash = 0;  // XXH3-64 of the payload part as sent
  Tag needs_from;             // the sender needs no message with an earlier tag
  std::vector<BlockHeader> blocks;
  bool operator==(const Envelope&) const = default;
};

uint64_t payload_hash(std::span<const std::byte> payload);

// Serialises envelopes, and reuses its memory. Not thread-safe.
class EnvelopeWriter {
 public:
  EnvelopeWriter();
  ~EnvelopeWriter();
  // The bytes are valid until the next call.
  std::span<const std::byte> write(const Envelope& envelope);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Verifies `bytes` (of any alignment) and fills `envelope`. Reuses the memory of `envelope` and of
// `scratch`. Checks everything that can be checked without the payload: version, number of blocks, rows *
// cols * 4 and the sum of block bytes <= `max_message_bytes`, sum == raw_bytes.
void parse_envelope(std::span<const std::byte> bytes, size_t max_message_bytes, Envelope& envelope,
                    std::vector<uint64_t>& scratch);

// The blocks of a received payload, one after the other: `payload` itself or, if LZ4 compressed it,
// `scratch` with the decompressed bytes. Checks hash and sizes.
std::span<const std::byte> open_payload(const Envelope& envelope, std::span<const std::byte> payload,
                                        size_t max_message_bytes, std::vector<std::byte>& scratch);

}  // namespace modelet::comm
