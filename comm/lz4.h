// LZ4 block compression of byte strings, with hard limits on what comes out. Stateless; thread-safe.
#pragma once

#include <cstddef>
#include <span>

namespace modelet::comm {

// Compresses `in` into `out`. Returns the number of bytes used, or 0 if the result does not fit: give an
// `out` smaller than `in` and only what saves something is compressed. At most 2 GB; more counts as "does not
// fit".
size_t lz4_compress(std::span<const std::byte> in, std::span<std::byte> out);

// Throws FormatError if `raw_bytes` is more than `limit`, or more than LZ4 can make of `compressed_bytes`.
// Call it before allocating `raw_bytes` because a message says so: then a peer cannot make this process
// allocate 255 times what it sent.
void lz4_check_size(size_t compressed_bytes, size_t raw_bytes, size_t limit);

// Decompresses `in`; throws FormatError unless it is valid and fills `out` exactly.
void lz4_decompress(std::span<const std::byte> in, std::span<std::byte> out);

}  // namespace modelet::comm
