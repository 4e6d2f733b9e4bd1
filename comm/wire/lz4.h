// LZ4 block compression of byte strings, with hard limits on the output. Stateless; thread-safe.
#pragma once

#include <cstddef>
#include <span>

namespace modelet::comm {

// Compresses `in` into `out`. Returns the number of bytes used, or 0 if the result does not fit. With an
// `out` smaller than `in`, the result fits only if compression saves something. An input above 2 GB counts
// as "does not fit".
size_t lz4_compress(std::span<const std::byte> in, std::span<std::byte> out);

// Throws FormatError if `raw_bytes` is more than `limit`, or more than LZ4 can produce from
// `compressed_bytes`. Call it before allocating `raw_bytes` that a message announces. Otherwise a peer
// could make this process allocate 255 times what it sent.
void lz4_check_size(size_t compressed_bytes, size_t raw_bytes, size_t limit);

// Decompresses `in`; throws FormatError unless it is valid and fills `out` exactly.
void lz4_decompress(std::span<const std::byte> in, std::span<std::byte> out);

}  // namespace modelet::comm
