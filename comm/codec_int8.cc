// Codec "int8": a scale per row and one signed byte per value, rounded stochastically so that the expected
// decoded value is the value itself (as in QSGD, Alistarh et al., NeurIPS 2017, with the row's maximum as
// norm).
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/rng.h"
#include "comm/codecs.h"

namespace modelet::comm {
namespace {

constexpr float kSteps = 127;
constexpr float kFixed = 65536;  // fixed-point one, for 16 random bits
constexpr float kOffset =
    128 * kFixed;  // makes fixed-point values positive; also where a float's last place is 1 or less

// Bits of the largest |x| of a row. As integers, because bit patterns of magnitudes order like the
// magnitudes, NaN comes out on top, and integer maxima vectorise.
uint32_t max_magnitude(const float* row, size_t cols) {
  constexpr uint32_t kMagnitude = 0x7fffffff;
  int32_t best[kLanes] = {};
  const size_t whole = cols / kLanes * kLanes;
  for (size_t c = 0; c < whole; c += kLanes) {
    uint32_t bits[kLanes];
    std::memcpy(bits, row + c, sizeof(bits));
    for (size_t i = 0; i < kLanes; ++i)
      best[i] = std::max(best[i], static_cast<int32_t>(bits[i] & kMagnitude));
  }
  int32_t max = *std::max_element(best, best + kLanes);
  for (size_t c = whole; c < cols; ++c) {
    uint32_t bits;
    std::memcpy(&bits, row + c, sizeof(bits));
    max = std::max(max, static_cast<int32_t>(bits & kMagnitude));
  }
  return static_cast<uint32_t>(max);
}

// `key` is the block's place in the random stream; each value takes 16 bits of it.
void encode_lanes(const float* in, float inverse_step, uint64_t key, int8_t* out) {
  constexpr size_t kPerWord = sizeof(uint64_t) / sizeof(uint16_t);
  uint64_t words[kLanes / kPerWord];
  uint16_t random[kLanes];
  for (size_t i = 0; i < kLanes / kPerWord; ++i) words[i] = mix64(key + i);
  std::memcpy(random, words, sizeof(random));
  const float scale = inverse_step * kFixed;
  int8_t steps[kLanes];
  for (size_t i = 0; i < kLanes; ++i) {
    // floor(x / step + uniform[0, 1)) in fixed point. A row's largest value may come out a hair beyond 127
    // steps.
    const int32_t fixed = static_cast<int32_t>(in[i] * scale + kOffset) + random[i];
    steps[i] = static_cast<int8_t>(std::clamp((fixed >> 16) - 128, -127, 127));
  }
  std::memcpy(out, steps, sizeof(steps));
}

void decode_lanes(const int8_t* in, float step, float* out) {
  int8_t steps[kLanes];
  float values[kLanes];
  std::memcpy(steps, in, sizeof(steps));
  for (size_t i = 0; i < kLanes; ++i) values[i] = static_cast<float>(steps[i]) * step;
  std::memcpy(out, values, sizeof(values));
}

// Reciprocal of the step, or 0 (all values become zero) for a row below 3e-32, where it would overflow.
float inverse_step(float step) {
  const float inverse = 1 / step;
  return std::isfinite(inverse * kFixed) ? inverse : 0.0f;
}

void encode_row(const float* row, size_t cols, float inverse, uint64_t key, int8_t* out) {
  const size_t whole = cols / kLanes * kLanes, rest = cols - whole;
  for (size_t c = 0; c < whole; c += kLanes) encode_lanes(row + c, inverse, key + c, out + c);
  if (rest == 0) return;
  float last[kLanes] = {};
  int8_t encoded[kLanes];
  std::copy_n(row + whole, rest, last);
  encode_lanes(last, inverse, key + whole, encoded);
  std::copy_n(encoded, rest, out + whole);
}

void decode_row(const int8_t* in, size_t cols, float step, float* row) {
  const size_t whole = cols / kLanes * kLanes;
  for (size_t c = 0; c < whole; c += kLanes) decode_lanes(in + c, step, row + c);
  for (size_t c = whole; c < cols; ++c) row[c] = static_cast<float>(in[c]) * step;
}

class Int8Codec final : public Codec {
 public:
  std::string_view name() const override { return "int8"; }
  uint8_t id() const override { return 2; }
  size_t max_bytes(size_t rows, size_t cols) const override { return rows * (sizeof(float) + cols); }

  size_t encode(ConstMatrix values, uint64_t seed, std::span<std::byte> out) const override {
    MODELET_CHECK(out.size() >= max_bytes(values.rows, values.cols));
    std::byte* scales = out.data();
    auto* steps = reinterpret_cast<int8_t*>(out.data() + values.rows * sizeof(float));
    for (size_t r = 0; r < values.rows; ++r) {
      const float max = std::bit_cast<float>(max_magnitude(values.row(r), values.cols));
      if (!std::isfinite(max))
        throw Error(fmt::format(
            "int8: row {} of a {} x {} matrix holds a value that is not finite: training diverged; "
            "lower train.learning_rate or set optimizer.clip",
            r, values.rows, values.cols));
      float step = max / kSteps;
      if (!std::isfinite(step * kSteps)) step = std::nextafter(step, 0.0f);  // the quotient was rounded up
      const float inverse = inverse_step(step);
      std::memcpy(scales + r * sizeof(float), &step, sizeof(float));
      encode_row(values.row(r), values.cols, inverse, mix64(seed ^ mix64(r)), steps + r * values.cols);
    }
    return max_bytes(values.rows, values.cols);
  }

  void decode(std::span<const std::byte> bytes, Matrix values) const override {
    check_encoded_size(name(), values, bytes.size(), max_bytes(values.rows, values.cols));
    const auto* steps = reinterpret_cast<const int8_t*>(bytes.data() + values.rows * sizeof(float));
    for (size_t r = 0; r < values.rows; ++r) {
      float step;
      std::memcpy(&step, bytes.data() + r * sizeof(float), sizeof(float));
      if (!(step >= 0 && std::isfinite(step * kSteps)))
        throw FormatError(fmt::format("int8: step {} of row {} is negative or not finite", step, r));
      decode_row(steps + r * values.cols, values.cols, step, values.row(r));
    }
  }
};

}  // namespace

const Codec& codec_int8() {
  static const Int8Codec codec;
  return codec;
}

}  // namespace modelet::comm
