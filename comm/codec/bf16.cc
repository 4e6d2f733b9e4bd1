// Codec "bf16": the upper half of an fp32, rounded to nearest even. Relative error <= 2^-8; infinities and
// NaN survive.
#include "base/array/bf16.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/codec/codecs.h"

namespace modelet::comm {
namespace {

// One block of kLanes values; the arrays are local copies, so nothing aliases.
void encode_lanes(const float* in, std::byte* out) {
  float values[kLanes];
  Bf16 half[kLanes];
  std::memcpy(values, in, sizeof(values));
  for (size_t i = 0; i < kLanes; ++i) half[i] = nearest_bf16(values[i]);
  std::memcpy(out, half, sizeof(half));
}

void decode_lanes(const std::byte* in, float* out) {
  Bf16 half[kLanes];
  float values[kLanes];
  std::memcpy(half, in, sizeof(half));
  for (size_t i = 0; i < kLanes; ++i) values[i] = to_float(half[i]);
  std::memcpy(out, values, sizeof(values));
}

class Bf16Codec final : public Codec {
 public:
  CodecKind kind() const override { return CodecKind::kBf16; }
  uint8_t id() const override { return 1; }
  size_t max_bytes(size_t rows, size_t cols) const override { return rows * cols * sizeof(Bf16); }

  size_t encode(ConstMatrix values, Rounding, std::span<std::byte> out) const override {
    MODELET_CHECK(out.size() >= max_bytes(values.rows, values.cols));
    const size_t whole = values.cols / kLanes * kLanes, rest = values.cols - whole;
    std::byte* to = out.data();
    for (size_t r = 0; r < values.rows; ++r) {
      const float* row = values.row(r);
      for (size_t c = 0; c < whole; c += kLanes) encode_lanes(row + c, to + c * sizeof(Bf16));
      if (rest > 0) {
        float last[kLanes] = {};
        std::byte encoded[kLanes * sizeof(Bf16)];
        std::copy_n(row + whole, rest, last);
        encode_lanes(last, encoded);
        std::memcpy(to + whole * sizeof(Bf16), encoded, rest * sizeof(Bf16));
      }
      to += values.cols * sizeof(Bf16);
    }
    return max_bytes(values.rows, values.cols);
  }

  void decode(std::span<const std::byte> bytes, Matrix values) const override {
    check_encoded_size(name(), values, bytes.size(), max_bytes(values.rows, values.cols));
    const size_t whole = values.cols / kLanes * kLanes, rest = values.cols - whole;
    const std::byte* from = bytes.data();
    for (size_t r = 0; r < values.rows; ++r) {
      float* row = values.row(r);
      for (size_t c = 0; c < whole; c += kLanes) decode_lanes(from + c * sizeof(Bf16), row + c);
      if (rest > 0) {
        std::byte encoded[kLanes * sizeof(Bf16)] = {};
        float last[kLanes];
        std::memcpy(encoded, from + whole * sizeof(Bf16), rest * sizeof(Bf16));
        decode_lanes(encoded, last);
        std::copy_n(last, rest, row + whole);
      }
      from += values.cols * sizeof(Bf16);
    }
  }
};

}  // namespace

const Codec& codec_bf16() {
  static const Bf16Codec codec;
  return codec;
}

}  // namespace modelet::comm
