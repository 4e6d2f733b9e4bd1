#include "comm/content/content.h"

#include <sodium.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace modelet::comm {
namespace {

static_assert(std::endian::native == std::endian::little,
              "manifests are the memory of a little-endian machine");

struct Header {
  std::array<char, 4> magic = {'M', 'L', 'T', 'M'};
  uint32_t version = 1;
  uint64_t bytes = 0;
  uint32_t chunk_bytes = 0, zero = 0;
};
static_assert(sizeof(Header) == 24);

// The number of chunks of a file of `bytes` bytes.
uint64_t chunk_count(uint64_t bytes, uint32_t chunk_bytes) {
  return bytes / chunk_bytes + (bytes % chunk_bytes > 0 ? 1 : 0);
}

[[noreturn]] void fail(const std::string& what) { throw FormatError("not a manifest of data: " + what); }

}  // namespace

ContentId content_id(std::span<const std::byte> bytes) {
  // The first call chooses libsodium's code for this CPU.
  MODELET_CHECK(sodium_init() >= 0, "libsodium does not start");
  ContentId id;
  const auto* first = reinterpret_cast<const unsigned char*>(bytes.data());
  crypto_generichash(reinterpret_cast<unsigned char*>(id.bytes.data()), id.bytes.size(), first, bytes.size(),
                     nullptr, 0);
  return id;
}

std::string to_text(const ContentId& id) {
  std::string text;
  for (const std::byte byte : id.bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

ContentId parse_content_id(std::string_view text) {
  ContentId id;
  const auto digit = [](char c) -> unsigned {
    if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
    if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a') + 10;
    throw FormatError("not the address of data: an address has 64 hexadecimal digits, in lower case");
  };
  if (text.size() != 2 * id.bytes.size()) digit('?');
  for (size_t i = 0; i < id.bytes.size(); ++i)
    id.bytes[i] = static_cast<std::byte>(digit(text[2 * i]) << 4 | digit(text[2 * i + 1]));
  return id;
}

ReadBytes reader_of(std::span<const std::byte> memory) {
  return [memory](uint64_t offset, std::span<std::byte> to) {
    std::ranges::copy(memory.subspan(offset, to.size()), to.begin());
  };
}

ReadBytes reader_of(const ReadFile& file) {
  return [&file](uint64_t offset, std::span<std::byte> to) { file.read(offset, to); };
}

Manifest Manifest::of(std::span<const std::byte> file, uint32_t chunk_bytes) {
  return of(file.size(), chunk_bytes,
            [&](uint64_t begin, size_t bytes) { return content_id(file.subspan(begin, bytes)); });
}

Manifest Manifest::of(const ReadFile& file, uint32_t chunk_bytes, const std::function<void()>& check) {
  std::vector<std::byte> memory(std::min<uint64_t>(file.bytes(), chunk_bytes));
  return of(file.bytes(), chunk_bytes, [&](uint64_t begin, size_t bytes) {
    if (check) check();
    const auto chunk = std::span(memory).first(bytes);
    file.read(begin, chunk);
    return content_id(chunk);
  });
}

template <class IdOf>
Manifest Manifest::of(uint64_t bytes, uint32_t chunk_bytes, const IdOf& id_of) {
  MODELET_CHECK(chunk_bytes >= kSmallestChunk && chunk_bytes <= kLargestChunk);
  Manifest manifest;
  manifest.bytes_ = bytes;
  manifest.chunk_bytes_ = chunk_bytes;
  const uint64_t count = chunk_count(bytes, chunk_bytes);
  if (count > kMostChunks)
    throw Error(
        fmt::format("data of {} bytes is more than can be sent to agents ({}): put it where all of them can "
                    "read it",
                    bytes, uint64_t{kMostChunks} * chunk_bytes));
  manifest.chunks_.resize(count);
  for (size_t chunk = 0; chunk < count; ++chunk)
    manifest.chunks_[chunk] = id_of(manifest.chunk_begin(chunk), manifest.chunk_bytes(chunk));
  manifest.id_ = content_id(manifest.encode());
  return manifest;
}

Manifest Manifest::parse(std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof header) fail(fmt::format("it has {} bytes", bytes.size()));
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != Header{}.magic) fail("its first bytes differ");
  if (header.version != Header{}.version)
    fail(fmt::format("version {}, this program reads version {}", header.version, Header{}.version));
  if (header.chunk_bytes < kSmallestChunk || header.chunk_bytes > kLargestChunk || header.zero != 0)
    fail(fmt::format("chunks of {} bytes", header.chunk_bytes));
  const uint64_t count = chunk_count(header.bytes, header.chunk_bytes);
  if (count > kMostChunks) fail(fmt::format("{} chunks, more than the limit of {}", count, kMostChunks));
  if (bytes.size() != sizeof header + count * sizeof(ContentId))
    fail(fmt::format("it has {} bytes, which is not {} chunks", bytes.size(), count));
  Manifest manifest;
  manifest.bytes_ = header.bytes;
  manifest.chunk_bytes_ = header.chunk_bytes;
  manifest.chunks_.resize(count);
  if (count > 0)
    std::memcpy(manifest.chunks_.data(), bytes.data() + sizeof header, count * sizeof(ContentId));
  manifest.id_ = content_id(bytes);
  return manifest;
}

std::vector<std::byte> Manifest::encode() const {
  Header header;
  header.bytes = bytes_;
  header.chunk_bytes = chunk_bytes_;
  std::vector<std::byte> bytes;
  std::ranges::copy(std::as_bytes(std::span(&header, 1)), std::back_inserter(bytes));
  std::ranges::copy(std::as_bytes(std::span(chunks_)), std::back_inserter(bytes));
  return bytes;
}

size_t Manifest::chunk_bytes(size_t chunk) const {
  MODELET_CHECK(chunk < chunks_.size());
  return static_cast<size_t>(std::min<uint64_t>(chunk_bytes_, bytes_ - chunk_begin(chunk)));
}

bool Manifest::is_chunk(size_t chunk, std::span<const std::byte> bytes) const {
  return chunk < chunks_.size() && bytes.size() == chunk_bytes(chunk) && content_id(bytes) == chunks_[chunk];
}

}  // namespace modelet::comm
