// Codecs "int8" and "int4": a step for each row, and a small whole number for each value. A row without
// negative values, as ReLU produces it, uses all numbers for positive values: 0..255 or 0..15 instead of
// -127..127 or -7..7.
//
// Values are rounded to the nearest, or stochastically. Stochastic rounding makes the expected decoded
// value equal to the value itself (as in QSGD, Alistarh et al., NeurIPS 2017, with the row's maximum as
// norm). Zeros are left out where that saves bytes: values that ReLU cut off, and rows without labels.
//
// Layout: docs/wire_format.md.
#include "comm/codec/int.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/array/simd_targets.h"
#include "comm/codec/codecs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/codec/int.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "comm/codec/int-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace modelet::comm::HWY_NAMESPACE {

// Writes the steps of all rows, and computes the size of both layouts.
template <int kBits>
Sizes scan_rows(ConstMatrix values, std::byte* steps) {
  const Floats f;
  const Ints i32;
  const size_t lanes = hn::Lanes(f), whole = values.cols / lanes * lanes;
  Sizes sizes;
  for (size_t r = 0; r < values.rows; ++r) {
    const float* row = values.row(r);
    // Magnitudes are compared as integers: their bit patterns have the same order, and NaN is the largest.
    auto largest = hn::Zero(i32), signs = hn::Zero(i32);
    size_t zeros = 0;
    const auto add = [&](auto x) HWY_ATTR {
      const auto magnitude = hn::BitCast(i32, hn::Abs(x));
      const auto zero = hn::Eq(magnitude, hn::Zero(i32));
      largest = hn::Max(largest, magnitude);
      signs = hn::Or(signs, hn::IfThenZeroElse(zero, hn::BitCast(i32, x)));  // -0 does not count as negative
      zeros += hn::CountTrue(i32, zero);
    };
    for (size_t c = 0; c < whole; c += lanes) add(hn::LoadU(f, row + c));
    if (whole < values.cols) {
      std::array<float, 16> last{};
      std::copy(row + whole, row + values.cols, last.begin());
      add(hn::LoadU(f, last.data()));
      zeros -= whole + lanes - values.cols;
    }
    const float most = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(i32, largest)));
    if (!std::isfinite(most)) {
      sizes.bad_row = r;
      return sizes;
    }
    const RowStep step = step_of<kBits>(most, !hn::AllFalse(i32, hn::Lt(signs, hn::Zero(i32))));
    std::memcpy(steps + r * sizeof(step), &step, sizeof(step));
    if (step.size() == 0) continue;
    sizes.dense += Numbers<kBits>::bytes(values.cols);
    sizes.sparse += bitmap_bytes(values.cols) + Numbers<kBits>::bytes(values.cols - zeros);
  }
  return sizes;
}

constexpr size_t kWhole = 16;  // a multiple of this many numbers is whole vectors everywhere below

// Packs `count` numbers of 4 bits into (count + 1) / 2 bytes, rounded up to whole vectors.
HWY_INLINE void pack_halves(const uint8_t* numbers, size_t count, std::byte* out) {
  const hn::CappedTag<uint16_t, 8> u16;
  const hn::Rebind<uint8_t, decltype(u16)> u8;
  for (size_t i = 0; i < count; i += 2 * hn::Lanes(u16)) {
    const auto pairs = hn::LoadU(u16, reinterpret_cast<const uint16_t*>(numbers + i));
    const auto low = hn::And(pairs, hn::Set(u16, 0x0f)),
               high = hn::And(hn::ShiftRight<4>(pairs), hn::Set(u16, 0xf0));
    hn::StoreU(hn::TruncateTo(u8, hn::Or(low, high)), u8, reinterpret_cast<uint8_t*>(out + i / 2));
  }
}

HWY_INLINE void unpack_halves(const std::byte* in, size_t count, uint8_t* numbers) {
  const hn::CappedTag<uint16_t, 8> u16;
  const hn::Rebind<uint8_t, decltype(u16)> u8;
  for (size_t i = 0; i < count; i += 2 * hn::Lanes(u16)) {
    const auto bytes = hn::PromoteTo(u16, hn::LoadU(u8, reinterpret_cast<const uint8_t*>(in + i / 2)));
    const auto high = hn::ShiftLeft<4>(hn::And(bytes, hn::Set(u16, 0xf0)));
    hn::StoreU(hn::Or(hn::And(bytes, hn::Set(u16, 0x0f)), high), u16,
               reinterpret_cast<uint16_t*>(numbers + i));
  }
}

// Appends numbers of kBits bits each. end() closes a row, at a whole byte.
template <int kBits>
class NumberWriter {
 public:
  explicit NumberWriter(std::byte* out) : out_(out) {}

  HWY_INLINE void write(const uint8_t* numbers, size_t count) {
    if constexpr (kBits == 8) {
      out_ = std::copy_n(reinterpret_cast<const std::byte*>(numbers), count, out_);
    } else {
      std::copy_n(numbers, count, waiting_.begin() + static_cast<std::ptrdiff_t>(count_));
      count_ += count;
      flush(count_ / 2);
      if (count_ % 2 == 1) waiting_[0] = waiting_[count_ - 1];
      count_ %= 2;
    }
  }
  HWY_INLINE std::byte* end() {
    if (count_ > 0) *out_++ = std::byte{waiting_[0]} & std::byte{0x0f};
    return out_;
  }

 private:
  HWY_INLINE void flush(size_t bytes) {
    std::array<std::byte, kChunk> packed;
    pack_halves(waiting_.data(), 2 * bytes, packed.data());
    out_ = std::copy_n(packed.begin(), bytes, out_);
  }

  std::byte* out_;
  std::array<uint8_t, 2 * kChunk> waiting_{};  // numbers of 4 bits that are not packed yet
  size_t count_ = 0;
};

// Writes the `count` numbers of a chunk; the numbers after them are zeros. Returns the end of the output.
template <int kBits>
HWY_INLINE std::byte* write_dense(const uint8_t* numbers, size_t count, std::byte* out) {
  const size_t bytes = Numbers<kBits>::bytes(count);
  if constexpr (kBits == 8) {
    std::memcpy(out, numbers, bytes);
  } else if (count % kWhole == 0) {
    pack_halves(numbers, count, out);
  } else {
    std::array<std::byte, kChunk> packed;
    pack_halves(numbers, count, packed.data());
    std::memcpy(out, packed.data(), bytes);
  }
  return out + bytes;
}

template <int kBits, bool kStochastic>
std::byte* write_row(const float* row, size_t cols, RowStep step, uint32_t key, Layout layout,
                     std::byte* out) {
  std::array<uint8_t, kChunk> numbers, kept;
  if (layout == kDense) {
    for (size_t c = 0; c < cols; c += kChunk) {
      const size_t count = make_chunk<kBits, kStochastic>(row, cols, c, step, key, numbers);
      out = write_dense<kBits>(numbers.data(), count, out);
    }
    return out;
  }
  NumberWriter<kBits> writer(out + bitmap_bytes(cols));
  for (size_t c = 0; c < cols; c += kChunk) {
    const size_t count = make_chunk<kBits, kStochastic>(row, cols, c, step, key, numbers);
    const auto zeros = hn::Zero(hn::CappedTag<uint8_t, kChunk>());
    const uint64_t bits = bits_where(numbers.data(), [=](auto x) HWY_ATTR { return hn::Ne(x, zeros); });
    std::memcpy(out + c / 8, &bits, bitmap_bytes(count));
    size_t size = 0;
    for (uint64_t left = bits; left != 0; left &= left - 1)
      kept[size++] = numbers[static_cast<size_t>(std::countr_zero(left))];
    writer.write(kept.data(), size);
  }
  return writer.end();
}

// Writes all rows whose step is not 0. Returns the end of the output.
template <int kBits>
std::byte* write_rows(ConstMatrix values, Rounding rounding, Layout layout, const std::byte* steps,
                      std::byte* out) {
  for (size_t r = 0; r < values.rows; ++r) {
    const RowStep step = load_step(steps, r);
    if (step.size() == 0) continue;
    const auto key = static_cast<uint32_t>(rounding.row_seed(r));
    out = rounding.to_nearest() ? write_row<kBits, false>(values.row(r), values.cols, step, key, layout, out)
                                : write_row<kBits, true>(values.row(r), values.cols, step, key, layout, out);
  }
  return out;
}

// Converts `count` numbers, rounded up to whole vectors, to values. The numbers are in two's complement of
// kBits bits if the row has negative values, else unsigned.
template <int kBits>
HWY_INLINE void to_floats(const uint8_t* numbers, size_t count, bool negative, float step, float* out) {
  const Floats f;
  const Ints i32;
  const Bytes u8;
  const auto sign = hn::Set(i32, negative ? 1 << (kBits - 1) : 0);
  for (size_t i = 0; i < count; i += hn::Lanes(f)) {
    const auto number = hn::PromoteTo(i32, hn::LoadU(u8, numbers + i));
    hn::StoreU(hn::Mul(hn::ConvertTo(f, hn::Sub(hn::Xor(number, sign), sign)), hn::Set(f, step)), f, out + i);
  }
}

// Decodes `size` numbers to `out`. Reads and writes whole vectors, so it may go past `size`.
template <int kBits>
HWY_INLINE void read_chunk(const std::byte* in, RowStep step, size_t size, float* out) {
  const auto* numbers = reinterpret_cast<const uint8_t*>(in);
  std::array<uint8_t, kChunk> unpacked;
  if constexpr (kBits == 4) {
    unpack_halves(in, size, unpacked.data());
    numbers = unpacked.data();
  }
  to_floats<kBits>(numbers, size, step.negative(), step.size(), out);
}

// Decodes a row in the layout kDense.
template <int kBits>
void read_dense(const std::byte* in, RowStep step, float* row, size_t cols) {
  for (size_t c = 0; c < cols; c += kChunk) {
    const size_t size = std::min(kChunk, cols - c);
    const std::byte* const from = in + Numbers<kBits>::bytes(c);
    if (size % kWhole == 0) {
      read_chunk<kBits>(from, step, size, row + c);
      continue;
    }
    std::array<std::byte, kChunk> last{};
    std::array<float, kChunk> values;
    std::copy_n(from, Numbers<kBits>::bytes(size), last.begin());
    read_chunk<kBits>(last.data(), step, size, values.data());
    std::copy_n(values.begin(), size, row + c);
  }
}

Sizes scan_rows_8(ConstMatrix values, std::byte* steps) { return scan_rows<8>(values, steps); }
Sizes scan_rows_4(ConstMatrix values, std::byte* steps) { return scan_rows<4>(values, steps); }
std::byte* write_rows_8(ConstMatrix values, Rounding rounding, Layout layout, const std::byte* steps,
                        std::byte* out) {
  return write_rows<8>(values, rounding, layout, steps, out);
}
std::byte* write_rows_4(ConstMatrix values, Rounding rounding, Layout layout, const std::byte* steps,
                        std::byte* out) {
  return write_rows<4>(values, rounding, layout, steps, out);
}
void read_dense_8(const std::byte* in, RowStep step, float* row, size_t cols) {
  read_dense<8>(in, step, row, cols);
}
void read_dense_4(const std::byte* in, RowStep step, float* row, size_t cols) {
  read_dense<4>(in, step, row, cols);
}

}  // namespace modelet::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace modelet::comm {
namespace {

HWY_EXPORT(scan_rows_8);
HWY_EXPORT(scan_rows_4);
HWY_EXPORT(write_rows_8);
HWY_EXPORT(write_rows_4);
HWY_EXPORT(read_dense_8);
HWY_EXPORT(read_dense_4);

FormatError wrong_size(std::string_view name, size_t got, ConstMatrix values) {
  return FormatError(
      fmt::format("{}: {} bytes are not what a {} x {} matrix needs", name, got, values.rows, values.cols));
}

size_t count_bits(std::span<const std::byte> bitmap) {
  size_t count = 0;
  for (size_t i = 0; i < bitmap.size(); i += sizeof(uint64_t))
    count += static_cast<size_t>(
        std::popcount(load_bits(&bitmap[i], std::min(sizeof(uint64_t), bitmap.size() - i))));
  return count;
}

// Decodes a row with a bitmap of the values that are not zero. It reads the numbers one by one: a vector
// would have to wait until its bytes are gathered.
template <int kBits>
void read_kept(const std::byte* bitmap, RowStep step, float* row, size_t cols) {
  constexpr unsigned kMask = (1u << kBits) - 1;
  const int sign = step.negative() ? 1 << (kBits - 1) : 0;  // the sign bit in two's complement
  const std::byte* const numbers = bitmap + bitmap_bytes(cols);
  size_t bit = 0;
  std::fill_n(row, cols, 0.0f);
  for (size_t c = 0; c < cols; c += kChunk) {
    uint64_t kept = load_bits(bitmap + c / 8, std::min(sizeof(kept), bitmap_bytes(cols) - c / 8));
    for (; kept != 0; kept &= kept - 1, bit += kBits) {
      const unsigned number = std::to_integer<unsigned>(numbers[bit / 8]) >> (bit % 8) & kMask;
      const int value = (static_cast<int>(number) ^ sign) - sign;
      row[c + static_cast<size_t>(std::countr_zero(kept))] = static_cast<float>(value) * step.size();
    }
  }
}

// Decodes all rows. The steps, and then the rows, follow the first byte, which is the layout.
template <int kBits>
void decode_rows(std::string_view name, Layout layout, std::span<const std::byte> bytes, Matrix values) {
  const size_t head = 1 + values.rows * sizeof(RowStep);
  if (bytes.size() < head) throw wrong_size(name, bytes.size(), values);
  std::span<const std::byte> rest = bytes.subspan(head);
  for (size_t r = 0; r < values.rows; ++r) {
    const RowStep step = load_step(&bytes[1], r);
    if (step.size() == 0) {
      std::fill_n(values.row(r), values.cols, 0.0f);
      continue;
    }
    if (!is_safe<kBits>(step))
      throw FormatError(
          fmt::format("{}: step {} of row {} is too large or not a number", name, step.size(), r));
    const size_t bitmap = layout == kDense ? 0 : bitmap_bytes(values.cols);
    if (rest.size() < bitmap) throw wrong_size(name, bytes.size(), values);
    if (bitmap > 0 && (std::to_integer<unsigned>(rest[bitmap - 1]) >> ((values.cols - 1) % 8)) > 1)
      throw FormatError(fmt::format("{}: row {} has values beyond column {}", name, r, values.cols));
    const size_t count = layout == kDense ? values.cols : count_bits(rest.first(bitmap));
    const size_t used = bitmap + Numbers<kBits>::bytes(count);
    if (rest.size() < used) throw wrong_size(name, bytes.size(), values);
    if (layout == kZerosLeftOut)
      read_kept<kBits>(rest.data(), step, values.row(r), values.cols);
    else if constexpr (kBits == 8)
      HWY_DYNAMIC_DISPATCH(read_dense_8)(rest.data(), step, values.row(r), values.cols);
    else
      HWY_DYNAMIC_DISPATCH(read_dense_4)(rest.data(), step, values.row(r), values.cols);
    rest = rest.subspan(used);
  }
  if (!rest.empty()) throw wrong_size(name, bytes.size(), values);
}

template <int kBits>
class IntCodec final : public Codec {
 public:
  IntCodec(CodecKind kind, uint8_t id) : kind_(kind), id_(id) {}
  CodecKind kind() const override { return kind_; }
  uint8_t id() const override { return id_; }
  size_t max_bytes(size_t rows, size_t cols) const override {
    return 1 + rows * (sizeof(RowStep) + Numbers<kBits>::bytes(cols));
  }

  size_t encode(ConstMatrix values, Rounding rounding, std::span<std::byte> out) const override {
    MODELET_CHECK(out.size() >= max_bytes(values.rows, values.cols));
    std::byte* const steps = out.data() + 1;
    const Sizes sizes = kBits == 8 ? HWY_DYNAMIC_DISPATCH(scan_rows_8)(values, steps)
                                   : HWY_DYNAMIC_DISPATCH(scan_rows_4)(values, steps);
    if (sizes.bad_row < values.rows)
      throw Error(
          fmt::format("{}: row {} of a {} x {} matrix holds a value that is not finite: training diverged; "
                      "lower train.learning_rate or set optimizer.clip",
                      name(), sizes.bad_row, values.rows, values.cols));
    const Layout layout = sizes.sparse < sizes.dense ? kZerosLeftOut : kDense;
    out[0] = std::byte{layout};
    std::byte* const rows = steps + values.rows * sizeof(RowStep);
    const std::byte* const end =
        kBits == 8 ? HWY_DYNAMIC_DISPATCH(write_rows_8)(values, rounding, layout, steps, rows)
                   : HWY_DYNAMIC_DISPATCH(write_rows_4)(values, rounding, layout, steps, rows);
    return static_cast<size_t>(end - out.data());
  }

  void decode(std::span<const std::byte> bytes, Matrix values) const override {
    if (bytes.empty()) throw wrong_size(name(), 0, values);
    const auto layout = std::to_integer<uint8_t>(bytes[0]);
    if (layout > kZerosLeftOut) throw FormatError(fmt::format("{}: unknown layout {}", name(), layout));
    decode_rows<kBits>(name(), static_cast<Layout>(layout), bytes, values);
  }

 private:
  CodecKind kind_;
  uint8_t id_;
};

}  // namespace

const Codec& codec_int8() {
  static const IntCodec<8> codec(CodecKind::kInt8, 3);
  return codec;
}

const Codec& codec_int4() {
  static const IntCodec<4> codec(CodecKind::kInt4, 4);
  return codec;
}

}  // namespace modelet::comm
#endif  // HWY_ONCE
