#include "comm/wire/envelope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>

#include "base/rng.h"
#include "base/system/file.h"
#include "comm/wire/envelope_generated.h"
#include "tests/comm/messages.h"

namespace modelet::comm {
namespace {

using testing::good_message;
using ::testing::HasSubstr;
using testing::kMessageLimit;
using testing::Message;
using testing::read_message;

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

// An envelope as a hostile peer, or a peer of another version, would write it.
std::vector<std::byte> hostile_envelope(const std::function<void(wire::EnvelopeT&)>& change) {
  wire::EnvelopeT envelope;
  envelope.version = kWireVersion;
  envelope.raw_bytes = 16;
  envelope.blocks = {wire::Block(2, 2, 16, 0)};
  change(envelope);
  flatbuffers::FlatBufferBuilder builder;
  wire::FinishEnvelopeBuffer(builder, wire::Envelope::Pack(builder, &envelope));
  const auto bytes = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
  return {bytes.begin(), bytes.end()};
}

void parse(std::span<const std::byte> bytes, Envelope& envelope) {
  std::vector<uint64_t> scratch;
  parse_envelope(bytes, kMessageLimit, envelope, scratch);
}

std::string parse_refusal(const std::vector<std::byte>& bytes) {
  return refusal([&] {
    Envelope envelope;
    parse(bytes, envelope);
  });
}

TEST(Envelope, RoundTripAtAnyAlignment) {
  const Envelope sent{.run = ~uint64_t{0},
                      .epoch = 7,
                      .tag = {uint64_t{1} << 40, 65535, 60000},
                      .sender = 12,
                      .lz4 = true,
                      .raw_bytes = 300,
                      .payload_hash = 99,
                      .needs_from = {uint64_t{1} << 41, 4, 60001},
                      .blocks = {{1, 2, 3, 100}, {0, 5, 0, 0}, {0, 0, kBytesBlock, 40}, {7, 8, 2, 160}}};
  EnvelopeWriter writer;
  writer.write(Envelope{});  // a writer is reused
  const std::span<const std::byte> bytes = writer.write(sent);
  for (size_t shift = 0; shift < 8; ++shift) {
    std::vector<std::byte> moved(shift);
    moved.insert(moved.end(), bytes.begin(), bytes.end());
    Envelope got;
    got.blocks.resize(9);
    parse(std::span(moved).subspan(shift), got);
    EXPECT_EQ(got, sent);
  }
}

TEST(Envelope, EmptyAndLargestNumberOfBlocks) {
  for (const size_t blocks : {size_t{0}, kMaxBlocks}) {
    Envelope sent;
    sent.blocks.assign(blocks, BlockHeader{1, 1, 0, 4});
    sent.raw_bytes = 4 * blocks;
    EnvelopeWriter writer;
    Envelope got;
    parse(writer.write(sent), got);
    EXPECT_EQ(got, sent);
  }
}

TEST(Envelope, RefusesWhatDoesNotAddUp) {
  EXPECT_EQ(parse_refusal(hostile_envelope([](auto&) {})), "accepted");
  for (const int version : {kWireVersion - 1, kWireVersion + 1})
    EXPECT_EQ(
        parse_refusal(hostile_envelope([&](auto& e) { e.version = static_cast<uint16_t>(version); })),
        fmt::format("envelope: wire version {}, this program speaks {}: run the same release on all nodes",
                    version, kWireVersion));
  EXPECT_THAT(parse_refusal(hostile_envelope([](auto& e) { e.raw_bytes = 17; })), HasSubstr("add up to 16"));
  EXPECT_THAT(parse_refusal(hostile_envelope([](auto& e) { e.blocks.clear(); })), HasSubstr("add up to 0"));
  // rows * cols * 4 would be 0 in 64 bits.
  EXPECT_THAT(
      parse_refusal(hostile_envelope([](auto& e) { e.blocks[0] = wire::Block(1u << 31, 1u << 31, 16, 0); })),
      HasSubstr("over the limit"));
  // The sum of the bytes wraps round to 16 in 64 bits.
  EXPECT_THAT(parse_refusal(hostile_envelope([](auto& e) {
                e.blocks = {wire::Block(2, 2, ~uint64_t{0} - 15, 0), wire::Block(2, 2, 32, 0)};
              })),
              HasSubstr("over the limit"));
  EXPECT_THAT(parse_refusal(hostile_envelope([](auto& e) {
                e.blocks.assign(2, wire::Block(1, 1, kMessageLimit, 0));
                e.raw_bytes = 2 * kMessageLimit;
              })),
              HasSubstr("limit"));
  EXPECT_THAT(parse_refusal(hostile_envelope([](auto& e) {
                e.blocks.assign(kMaxBlocks + 1, wire::Block(0, 0, 0, 0));
                e.raw_bytes = 0;
              })),
              HasSubstr("4097 blocks"));
  EXPECT_THAT(parse_refusal(std::vector<std::byte>(kMaxEnvelopeBytes + 1)), HasSubstr("expected 8 to"));
  EXPECT_THAT(parse_refusal({}), HasSubstr("0 bytes"));
  EXPECT_THAT(parse_refusal(std::vector<std::byte>(100)), HasSubstr("not a valid"));
}

TEST(Payload, RefusesDamageAndWrongSizes) {
  for (const bool lz4 : {false, true}) {
    const Message good = good_message(lz4);
    EXPECT_NO_THROW(read_message(good, false));
    Message flipped = good;
    flipped.payload[3] ^= std::byte{1};
    EXPECT_THAT(refusal([&] { read_message(flipped, false); }), HasSubstr("checksum"));
    Message cut = good;
    cut.payload.pop_back();
    EXPECT_THAT(refusal([&] { read_message(cut, false); }), HasSubstr("checksum"));
    EXPECT_NE(refusal([&] { read_message(cut, true); }), "accepted");
  }
}

TEST(Lz4, RoundTripAndSizeLimits) {
  std::vector<std::byte> raw(10000);
  for (size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<std::byte>(i % 100);
  std::vector<std::byte> packed(raw.size());
  packed.resize(lz4_compress(raw, packed));
  ASSERT_GT(packed.size(), 0u);
  ASSERT_LT(packed.size(), 1000u);
  std::vector<std::byte> back(raw.size());
  lz4_decompress(packed, back);
  EXPECT_EQ(back, raw);
  for (const size_t wrong : {raw.size() - 1, raw.size() + 1}) {
    std::vector<std::byte> other(wrong);
    EXPECT_THROW(lz4_decompress(packed, other), FormatError);
  }
  // Data that does not shrink is not compressed.
  Rng rng(1);
  for (std::byte& byte : raw) byte = static_cast<std::byte>(rng.below(256));
  std::vector<std::byte> small(raw.size() - 1);
  EXPECT_EQ(lz4_compress(raw, small), 0u);
  EXPECT_EQ(lz4_compress({}, small), 0u);
}

TEST(Lz4, BombIsRefusedBeforeAnythingIsAllocated) {
  Envelope envelope;
  envelope.lz4 = true;
  const std::vector<std::byte> payload(1000);
  envelope.payload_hash = payload_hash(payload);
  std::vector<std::byte> scratch;
  for (const uint64_t bytes : {uint64_t{256'000}, uint64_t{1} << 40}) {
    envelope.raw_bytes = bytes;
    EXPECT_THROW(open_payload(envelope, payload, kMessageLimit, scratch), FormatError);
    EXPECT_EQ(scratch.capacity(), 0u);
  }
  // A real decompression bomb: 1 MB of zeros in 4 KB, announced as less than it is.
  const std::vector<std::byte> zeros(size_t{1} << 20);
  std::vector<std::byte> bomb(zeros.size());
  bomb.resize(lz4_compress(zeros, bomb));
  envelope.raw_bytes = 2 * bomb.size();
  envelope.payload_hash = payload_hash(bomb);
  EXPECT_THROW(open_payload(envelope, bomb, kMessageLimit, scratch), FormatError);
  EXPECT_EQ(scratch.size(), 2 * bomb.size());
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes)
    text += fmt::format("{}{:02x}", text.empty() ? "" : " ", std::to_integer<int>(byte));
  return text;
}

// The worked example of docs/wire_format.md is what the code writes.
TEST(WireFormat, WorkedExampleIsInTheDocumentation) {
  const std::string documentation = read_text_file(WIRE_FORMAT_MD);
  const float values[] = {127, -63, 0, 254, 2, -4};
  const auto encoded = [&](const Codec& codec) {
    std::vector<std::byte> bytes(codec.max_bytes(2, 3));
    bytes.resize(codec.encode({values, 2, 3, 3}, kNearest, bytes));
    return bytes;
  };
  for (const Codec* codec : all_codecs())
    EXPECT_THAT(documentation, HasSubstr("\n" + hex(encoded(*codec)) + "\n")) << codec->name();
  const Codec& codec = codec_of(CodecKind::kInt8);
  const std::vector<std::byte> payload = encoded(codec);
  Envelope envelope{.run = 0x0123456789abcdef, .epoch = 1, .tag = {117, 1}, .sender = 2};
  envelope.blocks = {{2, 3, codec.id(), payload.size()}};
  envelope.raw_bytes = payload.size();
  envelope.payload_hash = payload_hash(payload);
  envelope.needs_from = {117, 0, 1};
  EXPECT_THAT(documentation, HasSubstr(fmt::format("`{:016x}`", envelope.payload_hash)));
  EnvelopeWriter writer;
  std::span<const std::byte> bytes = writer.write(envelope);
  for (; !bytes.empty(); bytes = bytes.subspan(std::min<size_t>(16, bytes.size())))
    EXPECT_THAT(documentation, HasSubstr("\n" + hex(bytes.first(std::min<size_t>(16, bytes.size()))) + "\n"));
}

TEST(Message, ReadersSurviveMutations) {
  Rng rng(12);
  uint64_t accepted = 0, refused = 0;
  for (const bool lz4 : {false, true}) {
    const Message good = good_message(lz4);
    for (int trial = 0; trial < 300000; ++trial) {
      Message message = good;
      for (uint32_t edits = 1 + rng.below(3); edits > 0; --edits) {
        std::vector<std::byte>& part = rng.below(3) == 0 ? message.payload : message.envelope;
        const uint32_t where = rng.below(static_cast<uint32_t>(part.size()));
        if (rng.below(16) == 0)
          part.resize(where + 1);
        else
          part[where] = static_cast<std::byte>(rng.below(256));
      }
      try {
        read_message(message, trial % 4 != 0);
        ++accepted;
      } catch (const FormatError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(accepted, 1000u) << "no mutation gets through: the test does not reach the decoders";
  EXPECT_GT(refused, 1000u);
}

}  // namespace
}  // namespace modelet::comm
