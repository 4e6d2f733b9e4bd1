// Whole messages as they travel, for tests of the code that reads them (mutation tests and fuzz targets).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "comm/codec/codec.h"
#include "comm/wire/envelope.h"
#include "comm/wire/lz4.h"

namespace modelet::comm::testing {

struct Message {
  std::vector<std::byte> envelope, payload;
};

inline constexpr size_t kMessageLimit = size_t{1} << 20;  // bytes

// A message with a matrix for each codec, and a block of bytes.
inline Message good_message(bool lz4) {
  Envelope envelope{.run = 0x0123456789abcdef,
                    .epoch = 3,
                    .tag = {117, 1},
                    .sender = 2,
                    .lz4 = lz4,
                    .needs_from = {116, 65535, 2}};
  std::vector<std::byte> raw;
  size_t rows = 1;
  for (const Codec* codec : all_codecs()) {
    const size_t cols = 20;
    std::vector<float> values(rows * cols);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3;
    std::vector<std::byte> bytes(codec->max_bytes(rows, cols));
    bytes.resize(codec->encode({values.data(), rows, cols, cols}, {1}, bytes));
    envelope.blocks.push_back({static_cast<uint32_t>(rows), cols, codec->id(), bytes.size()});
    raw.insert(raw.end(), bytes.begin(), bytes.end());
    ++rows;
  }
  envelope.blocks.push_back({0, 0, kBytesBlock, 11});
  raw.resize(raw.size() + 11, std::byte{5});
  envelope.raw_bytes = raw.size();
  Message message;
  message.payload = raw;
  if (lz4) message.payload.resize(lz4_compress(raw, message.payload));
  envelope.payload_hash = payload_hash(message.payload);
  EnvelopeWriter writer;
  const std::span<const std::byte> written = writer.write(envelope);
  message.envelope.assign(written.begin(), written.end());
  return message;
}

// Reads a message as Group does. The blocks have the shapes that the message announces. Throws FormatError.
// `trust_hash` skips the checksum, so that damage reaches the decoders.
inline void read_message(const Message& message, bool trust_hash) {
  Envelope envelope;
  std::vector<uint64_t> envelope_memory;
  parse_envelope(message.envelope, kMessageLimit, envelope, envelope_memory);
  if (trust_hash) envelope.payload_hash = payload_hash(message.payload);
  std::vector<std::byte> scratch;
  std::span<const std::byte> raw = open_payload(envelope, message.payload, kMessageLimit, scratch);
  std::vector<float> values;
  for (const BlockHeader& block : envelope.blocks) {
    if (block.codec == kBytesBlock) {
      raw = raw.subspan(block.bytes);
      continue;
    }
    const Codec* codec = find_codec(block.codec);
    if (codec == nullptr) throw FormatError("unknown codec");
    values.resize(size_t{block.rows} * block.cols);
    codec->decode(raw.first(block.bytes), {values.data(), block.rows, block.cols, block.cols});
    raw = raw.subspan(block.bytes);
  }
}

}  // namespace modelet::comm::testing
