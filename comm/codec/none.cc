// Codec "none": fp32, exact.
#include <cstring>

#include "base/error.h"
#include "comm/codec/codecs.h"

namespace modelet::comm {
namespace {

class NoneCodec final : public Codec {
 public:
  CodecKind kind() const override { return CodecKind::kNone; }
  uint8_t id() const override { return 0; }
  size_t max_bytes(size_t rows, size_t cols) const override { return rows * cols * sizeof(float); }

  size_t encode(ConstMatrix values, Rounding, std::span<std::byte> out) const override {
    const size_t row_bytes = values.cols * sizeof(float);
    MODELET_CHECK(out.size() >= values.rows * row_bytes);
    if (row_bytes == 0) return 0;
    for (size_t r = 0; r < values.rows; ++r)
      std::memcpy(out.data() + r * row_bytes, values.row(r), row_bytes);
    return values.rows * row_bytes;
  }

  void decode(std::span<const std::byte> bytes, Matrix values) const override {
    const size_t row_bytes = values.cols * sizeof(float);
    check_encoded_size(name(), values, bytes.size(), values.rows * row_bytes);
    if (row_bytes == 0) return;
    for (size_t r = 0; r < values.rows; ++r)
      std::memcpy(values.row(r), bytes.data() + r * row_bytes, row_bytes);
  }
};

}  // namespace

const Codec& codec_none() {
  static const NoneCodec codec;
  return codec;
}

}  // namespace modelet::comm
