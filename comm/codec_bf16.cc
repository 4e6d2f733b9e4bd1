// Codec "bf16": the upper half of an fp32, rounded to nearest even. Relative error <= 2^-8; infinities and
// NaN survive.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/codecs.h"

namespace modelet::comm {
namespace {

uint16_t narrow(uint32_t bits) {
  constexpr uint32_t kInfinity = 0x7f800000, kQuiet = 0x0040;
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = (bits >> 16) | kQuiet;  // rounding could carry a NaN into an infinity
  return static_cast<uint16_t>((bits & 0x7fffffff) > kInfinity ? nan : rounded);
}

// One block of kLanes values; the arrays are local copies, so nothing aliases.
void encode_lanes(const float* in, std::byte* out) {
  uint32_t bits[kLanes];
  uint16_t half[kLanes];
  std::memcpy(bits, in, sizeof(bits));
  for (size_t i = 0; i < kLanes; ++i) half[i] = narrow(bits[i]);
  std::memcpy(out, half, sizeof(half));
}

void decode_lanes(const std::byte* in, float* out) {
  uint16_t half[kLanes];
  uint32_t bits[kLanes];
  std::memcpy(half, in, sizeof(half));
  for (size_t i = 0; i < kLanes; ++i) bits[i] = static_cast<uint32_t>(half[i]) << 16;
  std::memcpy(out, bits, sizeof(bits));
}

class Bf16Codec final : public Codec {
 public:
  std::string_view name() const override { return "bf16"; }
  uint8_t id() const override { return 1; }
  size_t max_bytes(size_t rows, size_t cols) const override { return rows * cols * sizeof(uint16_t); }

  size_t encode(ConstMatrix values, uint64_t, std::span<std::byte> out) const override {
    MODELET_CHECK(out.size() >= max_bytes(values.rows, values.cols));
    const size_t whole = values.cols / kLanes * kLanes, rest = values.cols - whole;
    std::byte* to = out.data();
    for (size_t r = 0; r < values.rows; ++r) {
      const float* row = values.row(r);
      for (size_t c = 0; c < whole; c += kLanes) encode_lanes(row + c, to + c * sizeof(uint16_t));
      if (rest > 0) {
        float last[kLanes] = {};
        std::byte encoded[kLanes * sizeof(uint16_t)];
        std::copy_n(row + whole, rest, last);
        encode_lanes(last, encoded);
        std::memcpy(to + whole * sizeof(uint16_t), encoded, rest * sizeof(uint16_t));
      }
      to += values.cols * sizeof(uint16_t);
    }
    return max_bytes(values.rows, values.cols);
  }

  void decode(std::span<const std::byte> bytes, Matrix values) const override {
    check_encoded_size(name(), values, bytes.size(), max_bytes(values.rows, values.cols));
    const size_t whole = values.cols / kLanes * kLanes, rest = values.cols - whole;
    const std::byte* from = bytes.data();
    for (size_t r = 0; r < values.rows; ++r) {
      float* row = values.row(r);
      for (size_t c = 0; c < whole; c += kLanes) decode_lanes(from + c * sizeof(uint16_t), row + c);
      if (rest > 0) {
        std::byte encoded[kLanes * sizeof(uint16_t)] = {};
        float last[kLanes];
        std::memcpy(encoded, from + whole * sizeof(uint16_t), rest * sizeof(uint16_t));
        decode_lanes(encoded, last);
        std::copy_n(last, rest, row + whole);
      }
      from += values.cols * sizeof(uint16_t);
    }
  }
};

}  // namespace

const Codec& codec_bf16() {
  static const Bf16Codec codec;
  return codec;
}

}  // namespace modelet::comm
