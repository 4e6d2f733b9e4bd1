#include "comm/messaging/outgoing.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "comm/wire/lz4.h"

namespace modelet::comm {
namespace {

// The most messages that are kept for a peer. There are more only if the peer sends nothing for very long:
// in dissemination a rank may rarely hear from the ranks to which it sends. The oldest messages have then
// arrived long ago, so they are dropped.
constexpr size_t kMostUnconfirmed = 1024;

size_t max_bytes(const OutBlock& block) {
  return block.codec == nullptr ? block.bytes.size()
                                : block.codec->max_bytes(block.values.rows, block.values.cols);
}

uint64_t plain_bytes_of(const BlockHeader& block) {
  return block.codec == kBytesBlock ? block.bytes : uint64_t{block.rows} * block.cols * sizeof(float);
}

// Writes a block to `out`.
BlockHeader encode_block(const OutBlock& block, std::span<std::byte> out) {
  if (block.codec == nullptr) {
    std::ranges::copy(block.bytes, out.begin());
    return {0, 0, kBytesBlock, block.bytes.size()};
  }
  const size_t rows = block.values.rows, cols = block.values.cols;
  MODELET_CHECK(rows <= std::numeric_limits<uint32_t>::max() && cols <= std::numeric_limits<uint32_t>::max());
  const size_t used = block.codec->encode(block.values, block.rounding, out);
  return {static_cast<uint32_t>(rows), static_cast<uint32_t>(cols), block.codec->id(), used};
}

}  // namespace

Outgoing::Outgoing(uint64_t run, uint32_t epoch, int sender, bool lz4) : lz4_(lz4) {
  envelope_.run = run;
  envelope_.epoch = epoch;
  envelope_.sender = static_cast<uint32_t>(sender);
}

// Memory for a new message's payload.
std::span<std::byte> Outgoing::begin(size_t most_bytes) {
  message_ = {};  // if the last message has left already, take() reuses its memory
  message_ = messages_.take();
  envelope_.blocks.clear();
  envelope_.raw_bytes = 0;
  plain_bytes_ = 0;
  return message_->payload_memory.reserve(most_bytes);
}

void Outgoing::encode(std::span<const OutBlock> blocks) {
  size_t most = 0;
  for (const OutBlock& block : blocks) most += max_bytes(block);
  const std::span<std::byte> raw = begin(most);
  for (const OutBlock& block : blocks) {
    const BlockHeader header = encode_block(block, raw.subspan(envelope_.raw_bytes));
    envelope_.blocks.push_back(header);
    envelope_.raw_bytes += header.bytes;
    plain_bytes_ += plain_bytes_of(header);
  }
  raw_ = raw.first(envelope_.raw_bytes);
}

void Outgoing::assemble(std::span<const BlockHeader> blocks, std::span<const std::byte> bytes) {
  const std::span<std::byte> raw = begin(bytes.size());
  std::copy(bytes.begin(), bytes.end(), raw.begin());
  envelope_.blocks.assign(blocks.begin(), blocks.end());
  envelope_.raw_bytes = bytes.size();
  for (const BlockHeader& block : blocks) plain_bytes_ += plain_bytes_of(block);
  raw_ = raw;
}

void Outgoing::seal(Tag tag, Tag needs_from) {
  envelope_.tag = tag;
  envelope_.needs_from = needs_from;
  message_->payload = compressed();
  envelope_.payload_hash = payload_hash(message_->payload);
  const std::span<const std::byte> written = writer_.write(envelope_);
  const std::span<std::byte> envelope = message_->envelope_memory.reserve(written.size());
  std::copy(written.begin(), written.end(), envelope.begin());
  message_->envelope = envelope;
}

// The bytes to send for raw_, which is in message_. If LZ4 is wanted and makes it smaller, they are its LZ4
// block, and raw_ is moved to lz4_memory_.
std::span<const std::byte> Outgoing::compressed() {
  const size_t used = lz4_ && !raw_.empty() ? lz4_compress(raw_, lz4_memory_.reserve(raw_.size() - 1)) : 0;
  envelope_.lz4 = used > 0;
  if (!envelope_.lz4) return raw_;
  std::swap(message_->payload_memory, lz4_memory_);
  return message_->payload_memory.reserve(used);
}

// ---- Unconfirmed

void Unconfirmed::add(int peer, Tag tag, const RecycledPtr<Message>& message) {
  std::vector<Sent>& sent = sent_[static_cast<size_t>(peer)];
  if (sent.size() == kMostUnconfirmed) sent.erase(sent.begin(), sent.begin() + kMostUnconfirmed / 2);
  sent.push_back({tag, message});
}

void Unconfirmed::confirm(int peer, Tag tag) {
  std::vector<Sent>& sent = sent_[static_cast<size_t>(peer)];
  const auto needed = std::ranges::find_if(sent, [&](const Sent& each) { return each.tag >= tag; });
  sent.erase(sent.begin(), needed);
}

}  // namespace modelet::comm
