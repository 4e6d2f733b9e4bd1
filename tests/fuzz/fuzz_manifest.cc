// Manifests of data, as anybody may offer them to a scheduler and as a scheduler sends them to agents. They
// must be read, or refused with FormatError. A manifest that was read is written as the same bytes, and none
// of its chunks lies beyond the file. Input: one byte for the size of a good manifest, then its edits, 2
// bytes each {where, value}.
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "comm/content/content.h"

using modelet::comm::Manifest;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  constexpr uint32_t kChunk = modelet::comm::kSmallestChunk;
  static const std::vector<std::byte> file(3 * kChunk + 5), good = Manifest::of(file, kChunk).encode();
  std::vector<std::byte> bytes = good;
  for (size_t i = 1; i + 2 <= size; i += 2)
    bytes[data[i] % bytes.size()] = static_cast<std::byte>(data[i + 1]);
  if (data[0] % 2 == 1) bytes.resize(data[0]);
  try {
    const Manifest manifest = Manifest::parse(bytes);
    uint64_t end = 0;
    for (size_t chunk = 0; chunk < manifest.chunks(); ++chunk) end += manifest.chunk_bytes(chunk);
    if (end != manifest.bytes() || manifest.encode() != bytes) __builtin_trap();
  } catch (const modelet::FormatError&) {
  }
  return 0;
}
