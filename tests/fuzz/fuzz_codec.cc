// Decoders take any bytes for any shape. Input: codec, rows, columns, then the encoded bytes.
#include <vector>

#include "base/error.h"
#include "comm/codec/codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const auto codecs = modelet::comm::all_codecs();
  const modelet::comm::Codec& codec = *codecs[data[0] % codecs.size()];
  const size_t rows = data[1] % 8, cols = data[2] % 64;
  std::vector<float> values(rows * cols);
  std::vector<std::byte> encoded(size - 3);
  for (size_t i = 3; i < size; ++i) encoded[i - 3] = std::byte{data[i]};
  // Random lengths are nearly always wrong, so half of them are made right.
  if (data[0] >= 128) encoded.resize(codec.max_bytes(rows, cols));
  try {
    codec.decode(encoded, {values.data(), rows, cols, cols});
  } catch (const modelet::FormatError&) {
  }
  return 0;
}
