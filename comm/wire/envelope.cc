#include "comm/wire/envelope.h"

#include <spdlog/fmt/fmt.h>
#include <xxhash.h>

#include <array>
#include <cstring>

#include "base/error.h"
#include "comm/wire/aligned_copy.h"
#include "comm/wire/envelope_generated.h"
#include "comm/wire/lz4.h"

namespace modelet::comm {
namespace {

void parse_blocks(const wire::Envelope& wire, size_t max_message_bytes, Envelope& envelope) {
  envelope.blocks.clear();
  if (wire.blocks() == nullptr || wire.blocks()->size() == 0) return;
  if (wire.blocks()->size() > kMaxBlocks)
    throw FormatError(
        fmt::format("envelope: {} blocks, more than the limit of {}", wire.blocks()->size(), kMaxBlocks));
  // FlatBuffers' verifier checks where structs are, but not their alignment.
  if (reinterpret_cast<uintptr_t>(wire.blocks()->Data()) % alignof(wire::Block) != 0)
    throw FormatError("envelope: not a valid Modelet envelope (misaligned blocks)");
  for (const wire::Block* block : *wire.blocks()) {
    const uint64_t values = uint64_t{block->rows()} * block->cols();
    if (values > max_message_bytes / sizeof(float) || block->bytes() > max_message_bytes)
      throw FormatError(
          fmt::format("envelope: a block of {} x {} values in {} bytes is over the limit of {} bytes",
                      block->rows(), block->cols(), block->bytes(), max_message_bytes));
    envelope.blocks.push_back({block->rows(), block->cols(), block->codec(), block->bytes()});
  }
}

}  // namespace

uint64_t payload_hash(std::span<const std::byte> payload) {
  return XXH3_64bits(payload.data(), payload.size());
}

struct EnvelopeWriter::Impl {
  flatbuffers::FlatBufferBuilder builder{1024};
  std::vector<wire::Block> blocks;
};

EnvelopeWriter::EnvelopeWriter() : impl_(std::make_unique<Impl>()) {}
EnvelopeWriter::~EnvelopeWriter() = default;

std::span<const std::byte> EnvelopeWriter::write(const Envelope& envelope) {
  MODELET_CHECK(envelope.blocks.size() <= kMaxBlocks, "too many blocks in a message");
  flatbuffers::FlatBufferBuilder& builder = impl_->builder;
  builder.Clear();
  impl_->blocks.clear();
  for (const BlockHeader& block : envelope.blocks)
    impl_->blocks.emplace_back(block.rows, block.cols, block.bytes, block.codec);
  const auto blocks = builder.CreateVectorOfStructs(impl_->blocks);
  wire::FinishEnvelopeBuffer(
      builder,
      wire::CreateEnvelope(builder, kWireVersion, envelope.lz4, envelope.tag.round, envelope.epoch,
                           envelope.sender, envelope.run, envelope.tag.step, envelope.raw_bytes,
                           envelope.payload_hash, blocks, envelope.tag.hop, envelope.needs_from.round,
                           envelope.needs_from.hop, envelope.needs_from.step));
  return std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
}

void parse_envelope(std::span<const std::byte> bytes, size_t max_message_bytes, Envelope& envelope,
                    std::vector<uint64_t>& scratch) {
  if (bytes.size() < 8 || bytes.size() > kMaxEnvelopeBytes)
    throw FormatError(fmt::format("envelope: {} bytes, expected 8 to {}", bytes.size(), kMaxEnvelopeBytes));
  const std::span<const uint8_t> copy = aligned_copy(bytes, scratch);
  flatbuffers::Verifier verifier(copy.data(), copy.size());
  if (!wire::VerifyEnvelopeBuffer(verifier)) throw FormatError("envelope: not a valid Modelet envelope");
  const wire::Envelope& wire = *wire::GetEnvelope(copy.data());
  if (wire.version() != kWireVersion)
    throw FormatError(
        fmt::format("envelope: wire version {}, this program speaks {}: run the same release on all nodes",
                    wire.version(), kWireVersion));
  envelope.run = wire.run();
  envelope.epoch = wire.epoch();
  envelope.tag = {wire.step(), wire.round(), wire.hop()};
  envelope.sender = wire.sender();
  envelope.lz4 = wire.lz4();
  envelope.raw_bytes = wire.raw_bytes();
  envelope.payload_hash = wire.payload_hash();
  envelope.needs_from = {wire.needs_step(), wire.needs_round(), wire.needs_hop()};
  parse_blocks(wire, max_message_bytes, envelope);

  uint64_t sum = 0;  // cannot overflow: kMaxBlocks * max_message_bytes is far below 2^64
  for (const BlockHeader& block : envelope.blocks) sum += block.bytes;
  if (sum != envelope.raw_bytes || sum > max_message_bytes)
    throw FormatError(fmt::format("envelope: {} bytes of payload announced, blocks add up to {} (limit {})",
                                  envelope.raw_bytes, sum, max_message_bytes));
}

std::span<const std::byte> open_payload(const Envelope& envelope, std::span<const std::byte> payload,
                                        size_t max_message_bytes, std::vector<std::byte>& scratch) {
  if (payload_hash(payload) != envelope.payload_hash)
    throw FormatError(
        fmt::format("payload: checksum of {} bytes does not match: damaged on the way", payload.size()));
  if (!envelope.lz4) {
    if (payload.size() != envelope.raw_bytes)
      throw FormatError(
          fmt::format("payload: {} bytes, its envelope says {}", payload.size(), envelope.raw_bytes));
    return payload;
  }
  lz4_check_size(payload.size(), envelope.raw_bytes, max_message_bytes);
  if (scratch.size() < envelope.raw_bytes) scratch.resize(envelope.raw_bytes);
  const std::span<std::byte> raw = std::span(scratch).first(envelope.raw_bytes);
  lz4_decompress(payload, raw);
  return raw;
}

}  // namespace modelet::comm
