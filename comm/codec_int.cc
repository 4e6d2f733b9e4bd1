// Codecs "int8" and "int4": a step per row and a small whole number per value. A row without negative values,
// as ReLU makes them, uses all numbers for its half of the line: 0..255 or 0..15 instead of -127..127 or
// -7..7.
//
// With a seed values are rounded stochastically, so that the expected decoded value is the value itself (as
// in QSGD, Alistarh et al., NeurIPS 2017, with the row's maximum as norm); without one to the nearest.
// Zeros are left out where that saves bytes: what ReLU cut off, and rows without labels.
//
// Layout: docs/wire_format.md.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"
#include "base/rng.h"
#include "comm/codecs.h"

namespace modelet::comm {
namespace {

enum Layout : uint8_t { kDense = 0, kZerosLeftOut = 1 };
constexpr uint16_t kNoNegative = 0x8000;  // sign bit of a row's step
constexpr float kFixed = 65536;           // fixed-point one, for 16 random bits
constexpr int kOffset = 128;              // makes fixed-point values positive
constexpr size_t kChunk = 64;             // numbers made, or read, at a time: as many as bits in a word

using Chunk = std::array<int8_t, kChunk>;

struct RowScan {
  float largest = 0;  // magnitude; NaN if there is one
  bool negative = false;
  size_t zeros = 0;
};

// As integers, because bit patterns of magnitudes order like the magnitudes, NaN comes out on top, and
// integer maxima vectorise.
RowScan scan(const float* row, size_t cols) {
  constexpr uint32_t kMagnitude = 0x7fffffff;
  std::array<int32_t, kLanes> largest{}, nonzero{};
  std::array<uint32_t, kLanes> signs{};
  const auto add = [&](const float* in) {
    std::array<uint32_t, kLanes> bits;
    std::memcpy(bits.data(), in, sizeof(bits));
    for (size_t i = 0; i < kLanes; ++i) {
      const auto magnitude = static_cast<int32_t>(bits[i] & kMagnitude);
      largest[i] = std::max(largest[i], magnitude);
      nonzero[i] += magnitude > 0 ? 1 : 0;
      signs[i] |= magnitude > 0 ? bits[i] : 0;  // -0 is no negative value
    }
  };
  const size_t whole = cols / kLanes * kLanes;
  for (size_t c = 0; c < whole; c += kLanes) add(row + c);
  std::array<float, kLanes> last{};
  std::copy(row + whole, row + cols, last.begin());
  add(last.data());

  RowScan result{.zeros = cols};
  uint32_t sign = 0;
  for (size_t i = 0; i < kLanes; ++i) {
    sign |= signs[i];
    result.zeros -= static_cast<size_t>(nonzero[i]);
  }
  result.negative = sign > kMagnitude;
  result.largest = std::bit_cast<float>(*std::max_element(largest.begin(), largest.end()));
  return result;
}

// How the numbers of one row come about.
struct Quantiser {
  float scale;    // numbers per unit, in fixed point
  int low, high;  // smallest and largest number
  uint64_t key;   // the row's place in the random stream, or kNearest

  // Numbers of kLanes values; each takes 16 random bits.
  void lanes(const float* in, size_t column, int8_t* out) const {
    constexpr size_t kWords = kLanes * sizeof(uint16_t) / sizeof(uint64_t);
    std::array<uint64_t, kWords> words;
    std::array<uint16_t, kLanes> noise;
    constexpr uint64_t kHalves = 0x8000800080008000;
    for (size_t i = 0; i < kWords; ++i) words[i] = key == kNearest ? kHalves : mix64(key + column + i);
    std::memcpy(noise.data(), words.data(), sizeof(noise));
    std::array<int8_t, kLanes> numbers;
    for (size_t i = 0; i < kLanes; ++i) {
      // floor(value / step + noise), noise in [0, 1). The largest value may come out a hair too large.
      const int32_t fixed = static_cast<int32_t>(in[i] * scale + kOffset * kFixed) + noise[i];
      numbers[i] = static_cast<int8_t>(std::clamp((fixed >> 16) - kOffset, low, high));
    }
    std::memcpy(out, numbers.data(), sizeof(numbers));
  }

  // The numbers of `count` values from `column` on, then zeros.
  void chunk(const float* row, size_t column, size_t count, Chunk& numbers) const {
    numbers.fill(0);
    const size_t whole = count / kLanes * kLanes;
    for (size_t c = 0; c < whole; c += kLanes) lanes(row + column + c, column + c, numbers.data() + c);
    if (whole == count) return;
    std::array<float, kLanes> last{};
    std::copy(row + column + whole, row + column + count, last.begin());
    lanes(last.data(), column + whole, numbers.data() + whole);  // zeros stay zeros, rounded either way
  }
};

// Numbers of kBits bits, one after the other.
template <int kBits>
class NumberWriter {
 public:
  explicit NumberWriter(std::byte* out) : out_(out) {}

  void write(const int8_t* numbers, size_t count) {
    if constexpr (kBits == 8) {
      std::memcpy(out_, numbers, count);
      out_ += count;
    } else {
      size_t i = 0;
      if (half_ && count > 0) *out_++ |= std::byte(numbers[i++] << 4);
      for (; i + 1 < count; i += 2) *out_++ = std::byte((numbers[i] & 15) | numbers[i + 1] << 4);
      if (count > 0) half_ = i < count;
      if (i < count) *out_ = std::byte(numbers[i] & 15);
    }
  }

  std::byte* end() const { return out_ + (half_ ? 1 : 0); }

 private:
  std::byte* out_;
  bool half_ = false;  // the byte at out_ has its lower half
};

template <int kBits>
class NumberReader {
 public:
  NumberReader(const std::byte* in, bool negative) : in_(in), negative_(negative) {}

  void read(size_t count, int16_t* numbers) {
    for (size_t i = 0; i < count; ++i) {
      const size_t at = next_ + i;
      const int bits = kBits == 8 ? std::to_integer<int>(in_[at])
                                  : (std::to_integer<int>(in_[at / 2]) >> (at % 2 * 4)) & 15;
      constexpr int kSign = 1 << (kBits - 1);
      numbers[i] = static_cast<int16_t>(negative_ ? (bits ^ kSign) - kSign : bits);
    }
    next_ += count;
  }

 private:
  const std::byte* in_;
  const bool negative_;
  size_t next_ = 0;
};

uint64_t load_bits(const std::byte* in, size_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, in, bytes);
  return word;
}

size_t bitmap_bytes(size_t cols) { return (cols + 7) / 8; }

size_t count_bits(std::span<const std::byte> bitmap) {
  size_t count = 0;
  for (size_t i = 0; i < bitmap.size(); i += 8)
    count +=
        static_cast<size_t>(std::popcount(load_bits(&bitmap[i], std::min<size_t>(8, bitmap.size() - i))));
  return count;
}

template <int kBits>
class IntCodec final : public Codec {
 public:
  IntCodec(std::string_view name, uint8_t id) : name_(name), id_(id) {}
  std::string_view name() const override { return name_; }
  uint8_t id() const override { return id_; }
  size_t max_bytes(size_t rows, size_t cols) const override {
    return 1 + rows * (sizeof(Bf16) + number_bytes(cols));
  }

  size_t encode(ConstMatrix values, uint64_t seed, std::span<std::byte> out) const override {
    MODELET_CHECK(out.size() >= max_bytes(values.rows, values.cols));
    std::byte* const steps = out.data() + 1;
    size_t dense = 0, sparse = 0;  // bytes of all rows
    for (size_t r = 0; r < values.rows; ++r) {
      const RowScan row = scan(values.row(r), values.cols);
      if (!std::isfinite(row.largest)) throw diverged(r, values);
      const Bf16 step = step_of(row);
      std::memcpy(steps + r * sizeof(step), &step, sizeof(step));
      if (to_float(step) == 0) continue;
      dense += number_bytes(values.cols);
      sparse += bitmap_bytes(values.cols) + number_bytes(values.cols - row.zeros);
    }
    const Layout layout = sparse < dense ? kZerosLeftOut : kDense;
    out[0] = std::byte{layout};
    std::byte* to = steps + values.rows * sizeof(Bf16);
    for (size_t r = 0; r < values.rows; ++r) {
      Bf16 step;
      std::memcpy(&step, steps + r * sizeof(step), sizeof(step));
      const float size = std::abs(to_float(step));
      if (size == 0) continue;
      const bool negative = (step.bits & kNoNegative) == 0;
      const Quantiser quantiser{kFixed / size, negative ? -kSigned : 0, levels(negative),
                                seed == kNearest ? kNearest : mix64(seed ^ mix64(r))};
      to = layout == kDense ? write_dense(quantiser, values.row(r), values.cols, to)
                            : write_sparse(quantiser, values.row(r), values.cols, to);
    }
    return static_cast<size_t>(to - out.data());
  }

  void decode(std::span<const std::byte> bytes, Matrix values) const override {
    const size_t steps_bytes = values.rows * sizeof(Bf16);
    if (bytes.size() < 1 + steps_bytes) throw wrong_size(bytes.size(), values);
    const auto layout = std::to_integer<uint8_t>(bytes[0]);
    if (layout > kZerosLeftOut) throw FormatError(fmt::format("{}: unknown layout {}", name_, layout));
    const std::span<const std::byte> steps = bytes.subspan(1, steps_bytes);
    std::span<const std::byte> rest = bytes.subspan(1 + steps_bytes);
    for (size_t r = 0; r < values.rows; ++r) {
      Bf16 step;
      std::memcpy(&step, &steps[r * sizeof(step)], sizeof(step));
      const bool negative = (step.bits & kNoNegative) == 0;
      const float size = std::abs(to_float(step));
      if (size == 0) {
        std::fill_n(values.row(r), values.cols, 0.0f);
        continue;
      }
      if (!std::isfinite(size * static_cast<float>(levels(negative))))
        throw FormatError(fmt::format("{}: step {} of row {} is too large or no number", name_, size, r));
      const size_t bitmap = layout == kDense ? 0 : bitmap_bytes(values.cols);
      if (rest.size() < bitmap) throw wrong_size(bytes.size(), values);
      const size_t count = layout == kDense ? values.cols : count_bits(rest.first(bitmap));
      const size_t used = bitmap + number_bytes(count);
      if (rest.size() < used) throw wrong_size(bytes.size(), values);
      if (bitmap > 0 && (std::to_integer<unsigned>(rest[bitmap - 1]) >> ((values.cols - 1) % 8)) > 1)
        throw FormatError(fmt::format("{}: row {} has values beyond column {}", name_, r, values.cols));
      read_row(rest.data(), bitmap, negative, size, values.row(r), values.cols);
      rest = rest.subspan(used);
    }
    if (!rest.empty()) throw wrong_size(bytes.size(), values);
  }

 private:
  static constexpr int kSigned = (1 << (kBits - 1)) - 1, kUnsigned = (1 << kBits) - 1;
  static constexpr int levels(bool negative) { return negative ? kSigned : kUnsigned; }
  static constexpr size_t number_bytes(size_t count) { return (count * kBits + 7) / 8; }

  // The row's largest magnitude over the largest number, rounded up so that this number is enough. 0 for a
  // row below 3e-32, whose reciprocal would overflow.
  static Bf16 step_of(const RowScan& row) {
    const auto most = static_cast<float>(levels(row.negative));
    Bf16 step{static_cast<uint16_t>((std::bit_cast<uint32_t>(row.largest / most) + 0xffff) >> 16)};
    if (!std::isfinite(to_float(step) * most)) --step.bits;
    if (!std::isfinite(kFixed * kOffset / to_float(step))) return {};
    if (!row.negative) step.bits |= kNoNegative;
    return step;
  }

  static std::byte* write_dense(const Quantiser& quantiser, const float* row, size_t cols, std::byte* out) {
    NumberWriter<kBits> writer(out);
    Chunk numbers;
    for (size_t c = 0; c < cols; c += kChunk) {
      const size_t count = std::min(kChunk, cols - c);
      quantiser.chunk(row, c, count, numbers);
      writer.write(numbers.data(), count);
    }
    return writer.end();
  }

  static std::byte* write_sparse(const Quantiser& quantiser, const float* row, size_t cols, std::byte* out) {
    NumberWriter<kBits> writer(out + bitmap_bytes(cols));
    Chunk numbers;
    for (size_t c = 0; c < cols; c += kChunk) {
      quantiser.chunk(row, c, std::min(kChunk, cols - c), numbers);
      uint64_t word = 0;
      size_t kept = 0;
      for (size_t i = 0; i < kChunk; ++i) {
        const int8_t number = numbers[i];
        numbers[kept] = number;
        kept += number != 0 ? 1 : 0;
        word |= uint64_t{number != 0} << i;
      }
      std::memcpy(out + c / 8, &word, std::min<size_t>(8, bitmap_bytes(cols) - c / 8));
      writer.write(numbers.data(), kept);
    }
    return writer.end();
  }

  // bitmap: its bytes, 0 if all numbers are there.
  static void read_row(const std::byte* in, size_t bitmap, bool negative, float step, float* row,
                       size_t cols) {
    NumberReader<kBits> reader(in + bitmap, negative);
    std::array<int16_t, kChunk + 1> numbers;
    for (size_t c = 0; c < cols; c += kChunk) {
      const size_t count = std::min(kChunk, cols - c);
      if (bitmap == 0) {
        reader.read(count, numbers.data());
        for (size_t i = 0; i < count; ++i) row[c + i] = static_cast<float>(numbers[i]) * step;
        continue;
      }
      const uint64_t word = load_bits(in + c / 8, std::min<size_t>(8, bitmap - c / 8));
      const auto kept = static_cast<size_t>(std::popcount(word));
      reader.read(kept, numbers.data());
      numbers[kept] = 0;
      size_t next = 0;
      for (size_t i = 0; i < count; ++i) {
        const uint64_t here = word >> i & 1;
        row[c + i] = static_cast<float>(numbers[next] * static_cast<int>(here)) * step;
        next += here;
      }
    }
  }

  Error diverged(size_t row, ConstMatrix values) const {
    return Error(
        fmt::format("{}: row {} of a {} x {} matrix holds a value that is not finite: training diverged; "
                    "lower train.learning_rate or set optimizer.clip",
                    name_, row, values.rows, values.cols));
  }

  FormatError wrong_size(size_t got, ConstMatrix values) const {
    return FormatError(fmt::format("{}: {} bytes are not what a {} x {} matrix needs", name_, got,
                                   values.rows, values.cols));
  }

  std::string_view name_;
  uint8_t id_;
};

}  // namespace

const Codec& codec_int8() {
  static const IntCodec<8> codec("int8", 3);
  return codec;
}

const Codec& codec_int4() {
  static const IntCodec<4> codec("int4", 4);
  return codec;
}

}  // namespace modelet::comm
