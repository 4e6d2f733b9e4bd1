#include "comm/wire/lz4.h"

#include <lz4.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "base/error.h"

namespace modelet::comm {
namespace {

constexpr size_t kMaxExpansion = 255;  // of the LZ4 block format: one byte stands for at most 255

const char* chars(std::span<const std::byte> bytes) { return reinterpret_cast<const char*>(bytes.data()); }
char* chars(std::span<std::byte> bytes) { return reinterpret_cast<char*>(bytes.data()); }

}  // namespace

size_t lz4_compress(std::span<const std::byte> in, std::span<std::byte> out) {
  if (in.empty() || in.size() > LZ4_MAX_INPUT_SIZE) return 0;
  const auto capacity = static_cast<int>(std::min<size_t>(out.size(), LZ4_MAX_INPUT_SIZE));
  const int used = LZ4_compress_default(chars(in), chars(out), static_cast<int>(in.size()), capacity);
  return static_cast<size_t>(std::max(used, 0));
}

void lz4_check_size(size_t compressed_bytes, size_t raw_bytes, size_t limit) {
  limit = std::min<size_t>(limit, LZ4_MAX_INPUT_SIZE);
  if (raw_bytes > limit || compressed_bytes > limit || raw_bytes / kMaxExpansion > compressed_bytes)
    throw FormatError(
        fmt::format("LZ4: {} bytes are said to become {}, which is over the limit ({} bytes, {}-fold)",
                    compressed_bytes, raw_bytes, limit, kMaxExpansion));
}

void lz4_decompress(std::span<const std::byte> in, std::span<std::byte> out) {
  lz4_check_size(in.size(), out.size(), LZ4_MAX_INPUT_SIZE);
  const int got =
      LZ4_decompress_safe(chars(in), chars(out), static_cast<int>(in.size()), static_cast<int>(out.size()));
  if (got < 0 || static_cast<size_t>(got) != out.size())
    throw FormatError(fmt::format("LZ4: {} damaged bytes, which do not unpack to {}", in.size(), out.size()));
}

}  // namespace modelet::comm
