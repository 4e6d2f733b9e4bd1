#include "comm/outgoing.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "comm/lz4.h"
#include "comm/reserve.h"

namespace modelet::comm {

Outgoing::Outgoing(uint64_t run, uint32_t epoch, int sender, bool lz4) : lz4_(lz4) {
  envelope_.run = run;
  envelope_.epoch = epoch;
  envelope_.sender = static_cast<uint32_t>(sender);
}

// Memory for a new message's payload.
std::span<std::byte> Outgoing::begin(size_t most_bytes) {
  message_ = {};  // if it has left already, its memory is the next one's
  message_ = messages_.take();
  envelope_.blocks.clear();
  envelope_.raw_bytes = 0;
  values_ = 0;
  return reserve(message_->payload_memory, most_bytes);
}

void Outgoing::encode(std::span<const OutBlock> blocks) {
  size_t most = 0;
  for (const OutBlock& block : blocks) most += block.codec->max_bytes(block.values.rows, block.values.cols);
  const std::span<std::byte> raw = begin(most);
  for (const OutBlock& block : blocks) {
    const size_t rows = block.values.rows, cols = block.values.cols;
    MODELET_CHECK(rows <= std::numeric_limits<uint32_t>::max() &&
                  cols <= std::numeric_limits<uint32_t>::max());
    const size_t used = block.codec->encode(block.values, block.rounding, raw.subspan(envelope_.raw_bytes));
    envelope_.blocks.push_back(
        {static_cast<uint32_t>(rows), static_cast<uint32_t>(cols), block.codec->id(), used});
    envelope_.raw_bytes += used;
    values_ += rows * cols;
  }
  raw_ = raw.first(envelope_.raw_bytes);
}

void Outgoing::assemble(std::span<const BlockHeader> blocks, std::span<const std::byte> bytes) {
  const std::span<std::byte> raw = begin(bytes.size());
  std::copy(bytes.begin(), bytes.end(), raw.begin());
  envelope_.blocks.assign(blocks.begin(), blocks.end());
  envelope_.raw_bytes = bytes.size();
  for (const BlockHeader& block : blocks) values_ += uint64_t{block.rows} * block.cols;
  raw_ = raw;
}

void Outgoing::seal(Tag tag) {
  envelope_.tag = tag;
  message_->payload = compressed();
  envelope_.payload_hash = payload_hash(message_->payload);
  const std::span<const std::byte> written = writer_.write(envelope_);
  std::copy(written.begin(), written.end(), reserve(message_->envelope_memory, written.size()).begin());
  message_->envelope = std::span(message_->envelope_memory).first(written.size());
}

// What to send for raw_, which is in message_: its LZ4 block if that is wanted and smaller; then raw_ is in
// lz4_memory_ afterwards.
std::span<const std::byte> Outgoing::compressed() {
  const size_t used = lz4_ && !raw_.empty() ? lz4_compress(raw_, reserve(lz4_memory_, raw_.size() - 1)) : 0;
  envelope_.lz4 = used > 0;
  if (!envelope_.lz4) return raw_;
  message_->payload_memory.swap(lz4_memory_);
  return std::span(message_->payload_memory).first(used);
}

}  // namespace modelet::comm
